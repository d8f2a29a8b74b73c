package main

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
)

// systemStateDir is the state dir of a gateway that the system started.
const systemStateDir = "/var/lib/trl"

// What is in a state dir.
const (
	addressFile   = "address" // the URL of the gateway that runs on this state dir
	tokensFile    = "tokens"
	operatorFile  = "operator-token" // the token of whoever runs the gateway, for the command line here and the login link
	gatewayDir    = "gateway"        // what a gateway writes, whichever user it is
	loginsFile    = gatewayDir + "/logins"
	acmeDir       = "acme" // certificates that the gateway got by itself, and their keys
	recordingsDir = "recordings"
	keeperFile    = "keeper"   // the keeper's pid, while it lives
	instanceFile  = "instance" // "BOOT-ID INSTANCE": how to find the processes that a killed keeper leaves
	upgradeFile   = "upgrade"  // how the last upgrade ended: nothing, or why it was refused
)

// stateDir is the gateway's directory, locked while it runs.
type stateDir struct {
	path string
	lock *os.File // flock; released by the kernel when we die, however we die
}

// userStateDir is where a gateway started by this user, not by the system, keeps its state.
func userStateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "trl")
	}
	return filepath.Join(homeDir(), ".local", "state", "trl")
}

// defaultStateDir is where serve keeps its state: what systemd says, the system's place for root, else the user's.
func defaultStateDir() string {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return dir
	}
	if os.Geteuid() == 0 {
		return systemStateDir
	}
	return userStateDir()
}

// openStateDir makes the directory and takes its lock.
func openStateDir(path string) (*stateDir, error) {
	const hint = "choose another one with --state-dir"
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, errorWithHint(fmt.Errorf("make state directory: %w", err), hint)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, errorWithHint(fmt.Errorf("state directory: %w", err), hint)
	}
	if info.Mode().Perm()&0o022 != 0 {
		// Who can write here can replace the tokens.
		return nil, errorWithHint(fmt.Errorf("state directory %s can be written by others", path), "chmod 700 %s, or %s", path, hint)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, errorWithHint(fmt.Errorf("lock state directory: %w", err), hint)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errorWithHint(fmt.Errorf("state directory %s: in use by another gateway", path), "stop that one, or %s", hint)
		}
		return nil, errorWithHint(fmt.Errorf("lock state directory: %w", err), hint)
	}
	return &stateDir{path: path, lock: lock}, nil
}

// inheritStateDir is the state dir of a process that has its lock already, as this descriptor.
func inheritStateDir(path string, lock int) (*stateDir, error) {
	path, err := filepath.Abs(path)
	return &stateDir{path: path, lock: os.NewFile(uintptr(lock), "lock")}, err
}

// stateDirAt is the state dir of a gateway, whose keeper has the lock.
func stateDirAt(path string) *stateDir { return &stateDir{path: path} }

// lockFD is the descriptor of the lock, for a keeper that passes it on to its successor.
func (d *stateDir) lockFD() int { return int(d.lock.Fd()) }

func (d *stateDir) file(name string) string { return filepath.Join(d.path, name) }

// publish tells the command line on this machine where the gateway is.
func (d *stateDir) publish(url string) error {
	tmp := d.file(addressFile + ".new")
	if err := os.WriteFile(tmp, []byte(url+"\n"), 0o600); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	if err := os.Rename(tmp, d.file(addressFile)); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	return nil
}

// Close takes the address back and releases the lock.
func (d *stateDir) Close() error {
	err := os.Remove(d.file(addressFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, d.lock.Close())
}

// isLocked: a gateway runs on the state dir.
func isLocked(dir string) (bool, error) {
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

// saveUpgradeOutcome leaves the outcome for whoever asked.
func (d *stateDir) saveUpgradeOutcome(outcome error, log zerolog.Logger) {
	text := ""
	if outcome != nil {
		text = outcome.Error() + "\n"
	}
	tmp := d.file(upgradeFile + ".new")
	err := os.WriteFile(tmp, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(tmp, d.file(upgradeFile))
	}
	if err != nil {
		log.Warn().Err(err).Msg("outcome of the upgrade")
	}
}

// homeDir is HOME, else the passwd entry's, else /.
func homeDir() string {
	if dir := os.Getenv("HOME"); filepath.IsAbs(dir) {
		return dir
	}
	if account, err := user.Current(); err == nil && filepath.IsAbs(account.HomeDir) {
		return account.HomeDir
	}
	return "/"
}
