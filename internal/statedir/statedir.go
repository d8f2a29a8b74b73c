// Package statedir is the directory in which a gateway keeps its state: where it is, its lock, its files, the operator's token.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/cmdline"
)

// OfSystem is the state dir of a gateway that the system started.
const OfSystem = "/var/lib/trl"

// What is in a state dir.
const (
	AddressFile   = "address" // the URL of the gateway that runs on this state dir
	TokensFile    = "tokens"
	OperatorFile  = "operator-token" // the token of whoever runs the gateway, for the command line here and the login link
	GatewayDir    = "gateway"        // what a gateway writes, whichever user it is
	LoginsFile    = GatewayDir + "/logins"
	ACMEDir       = "acme" // certificates that the gateway got by itself, and their keys
	RecordingsDir = "recordings"
	KeeperFile    = "keeper"   // the keeper's pid, while it lives
	InstanceFile  = "instance" // "BOOT-ID INSTANCE": how to find the processes that a killed keeper leaves
	UpgradeFile   = "upgrade"  // how the last upgrade ended: nothing, or why it was refused
)

// Dir is the gateway's directory, locked while it runs.
type Dir struct {
	Path string
	lock *os.File // flock; released by the kernel when we die, however we die
}

// OfUser is where a gateway started by this user, not by the system, keeps its state.
func OfUser() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "trl")
	}
	return filepath.Join(HomeDir(), ".local", "state", "trl")
}

// Default is where serve keeps its state: what systemd says, the system's place for root, else the user's.
func Default() string {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return dir
	}
	if os.Geteuid() == 0 {
		return OfSystem
	}
	return OfUser()
}

// Open makes the directory and takes its lock.
func Open(path string) (*Dir, error) {
	const hint = "choose another one with --state-dir"
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, cmdline.WithHint(fmt.Errorf("make state directory: %w", err), hint)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, cmdline.WithHint(fmt.Errorf("state directory: %w", err), hint)
	}
	if info.Mode().Perm()&0o022 != 0 {
		// Who can write here can replace the tokens.
		return nil, cmdline.WithHint(fmt.Errorf("state directory %s can be written by others", path), "chmod 700 %s, or %s", path, hint)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cmdline.WithHint(fmt.Errorf("lock state directory: %w", err), hint)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, cmdline.WithHint(fmt.Errorf("state directory %s: in use by another gateway", path), "stop that one, or %s", hint)
		}
		return nil, cmdline.WithHint(fmt.Errorf("lock state directory: %w", err), hint)
	}
	return &Dir{Path: path, lock: lock}, nil
}

// Inherit is the state dir of a process that has its lock already, as this descriptor.
func Inherit(path string, lock int) (*Dir, error) {
	path, err := filepath.Abs(path)
	return &Dir{Path: path, lock: os.NewFile(uintptr(lock), "lock")}, err
}

// At is the state dir of a gateway, whose keeper has the lock.
func At(path string) *Dir { return &Dir{Path: path} }

// LockFD is the descriptor of the lock, for a keeper that passes it on to its successor.
func (d *Dir) LockFD() int { return int(d.lock.Fd()) }

func (d *Dir) File(name string) string { return filepath.Join(d.Path, name) }

// Publish tells the command line on this machine where the gateway is.
func (d *Dir) Publish(url string) error {
	tmp := d.File(AddressFile + ".new")
	if err := os.WriteFile(tmp, []byte(url+"\n"), 0o600); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	if err := os.Rename(tmp, d.File(AddressFile)); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	return nil
}

// Close takes the address back and releases the lock.
func (d *Dir) Close() error {
	err := os.Remove(d.File(AddressFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, d.lock.Close())
}

// IsLocked: a gateway runs on the state dir.
func IsLocked(dir string) (bool, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// SaveUpgradeOutcome leaves the outcome for whoever asked.
func (d *Dir) SaveUpgradeOutcome(outcome error, log zerolog.Logger) {
	text := ""
	if outcome != nil {
		text = outcome.Error() + "\n"
	}
	tmp := d.File(UpgradeFile + ".new")
	err := os.WriteFile(tmp, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(tmp, d.File(UpgradeFile))
	}
	if err != nil {
		log.Warn().Err(err).Msg("outcome of the upgrade")
	}
}

// HomeDir is HOME, else the passwd entry's, else /.
func HomeDir() string {
	if dir := os.Getenv("HOME"); filepath.IsAbs(dir) {
		return dir
	}
	if account, err := user.Current(); err == nil && filepath.IsAbs(account.HomeDir) {
		return account.HomeDir
	}
	return "/"
}
