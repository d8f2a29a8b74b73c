// Package statedir is the directory in which a gateway keeps its state: its place, its lock, its files, the operator's token.
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

// Files and directories in a state dir.
const (
	AddressFile   = "address" // the URL of the running gateway
	TokensFile    = "tokens"
	OperatorFile  = "operator-token" // the operator's token, for the command line on this machine and the login link
	GatewayDir    = "gateway"        // the files that a gateway writes, also as another user
	LoginsFile    = GatewayDir + "/logins"
	ACMEDir       = "acme" // certificates from ACME, and their keys
	RecordingsDir = "recordings"
	KeeperFile    = "keeper"   // the keeper's pid, while it runs
	InstanceFile  = "instance" // "BOOT-ID INSTANCE", by which the next start finds the processes that a killed keeper left
	UpgradeFile   = "upgrade"  // the outcome of the last upgrade: empty, or why it was refused
)

// Dir is the gateway's state dir, locked while the gateway runs.
type Dir struct {
	Path string
	lock *os.File // flock; the kernel releases it when the process ends
}

// OfUser is the state dir of a gateway that a user started.
func OfUser() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "trl")
	}
	return filepath.Join(HomeDir(), ".local", "state", "trl")
}

// Default is the default of trl serve: the directory that systemd names, for root OfSystem, otherwise OfUser.
func Default() string {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return dir
	}
	if os.Geteuid() == 0 {
		return OfSystem
	}
	return OfUser()
}

// Open creates the directory and locks it.
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
		// Whoever can write here can replace the tokens.
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

// Inherit is the state dir of a process that already has its lock, as this descriptor.
func Inherit(path string, lock int) (*Dir, error) {
	path, err := filepath.Abs(path)
	return &Dir{Path: path, lock: os.NewFile(uintptr(lock), "lock")}, err
}

// At is the state dir of a gateway, whose keeper has the lock.
func At(path string) *Dir { return &Dir{Path: path} }

// LockFD is the lock's descriptor, for a keeper that passes it on to its successor.
func (d *Dir) LockFD() int { return int(d.lock.Fd()) }

func (d *Dir) File(name string) string { return filepath.Join(d.Path, name) }

// Publish writes the gateway's address for the command line on this machine.
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

// Close removes the address and releases the lock.
func (d *Dir) Close() error {
	err := os.Remove(d.File(AddressFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, d.lock.Close())
}

// IsLocked says whether a gateway runs on the state dir.
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

// SaveUpgradeOutcome writes the outcome of an upgrade for the trl upgrade that asked for it.
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

// HomeDir is $HOME, or the home in the passwd entry, or /.
func HomeDir() string {
	if dir := os.Getenv("HOME"); filepath.IsAbs(dir) {
		return dir
	}
	if account, err := user.Current(); err == nil && filepath.IsAbs(account.HomeDir) {
		return account.HomeDir
	}
	return "/"
}
