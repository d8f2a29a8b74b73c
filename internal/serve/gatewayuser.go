package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/statedir"
	"trl/runtime/host"
	"trl/web/auth"
	"trl/web/listen"
)

// --user and --session-user: what other users may do besides root's keeper. The keeper runs sessions as their user
// (runtime/host/confinement.go). This file has what a gateway needs that runs as another user.

// grantGateway gives the gateway's user what it needs of the state dir: it may enter it, read the tokens, and write into a directory for
// recordings. It can write nothing else there, because root reads and replaces files in it. Normally only the gateway knows its address;
// here grantGateway writes it now, and clients that connect before the gateway serves have to wait. The result is the gateway's
// environment.
func grantGateway(s *config.Settings, state *statedir.Dir, sockets *listen.Sockets, env []string) ([]string, error) {
	uid, gid := int(s.GatewayUser.UID), int(s.GatewayUser.GID)
	if err := errors.Join(os.Chown(state.Path, 0, gid), os.Chmod(state.Path, 0o750)); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if !s.Web.AuthNone && s.TokenFile == "" {
		made, err := auth.MakeTokens(state.File(statedir.TokensFile), state.File(statedir.OperatorFile))
		if err == nil {
			err = os.Lchown(state.File(statedir.TokensFile), uid, gid)
		}
		if err == nil { // its owner may have removed it
			if err = os.Lchown(state.File(statedir.OperatorFile), uid, gid); errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}
		if made {
			env = append(env[:len(env):len(env)], config.TokensNewVar+"=1")
		}
	}
	if err := os.Mkdir(state.File(statedir.GatewayDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := os.Lchown(state.File(statedir.GatewayDir), uid, gid); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if dir := s.Pool.Record.Dir; dir != "" {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Lchown(dir, uid, gid)); err != nil {
			return nil, fmt.Errorf("directory for recordings: %w", err)
		}
	}
	if url := sockets.URL(s.Web.Config); url != "" {
		return env, state.Publish(localURL(url, s.Web.Listen))
	}
	return env, nil
}

// clearEnvironment removes the variables that sessions must not get, and a TMPDIR that sessions of another user or in a sandbox cannot use.
// In a sandbox it returns the pid of the process that represents this one outside.
func clearEnvironment(s *config.Settings) (outsidePID int) {
	if text, sandboxed := os.LookupEnv(config.SandboxedVar); sandboxed {
		outsidePID, _ = strconv.Atoi(text)
		os.Unsetenv(config.SandboxedVar)
	}
	dir := os.Getenv("TMPDIR")
	if dir != "" && (s.SessionUser != nil && s.SessionUser.Enterable(dir) != nil || s.Sandbox != "none" && unix.Access(dir, unix.W_OK) != nil) {
		os.Unsetenv("TMPDIR")
	}
	return outsidePID
}

// The orphan killer ends what is left of the sessions when a keeper is killed, because a gateway that is not root may not kill them. It
// runs as root and waits for the end of a pipe that the keeper holds; it has no other descriptor.
const killOrphansCommand = "kill-orphans"

// startOrphanKiller starts it. It ends when nobody has w open any more: after a call of end, or with this process.
func startOrphanKiller(instance host.Instance) (w *os.File, end func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", killOrphansCommand, strconv.FormatUint(uint64(instance), 10))
	cmd.Args[0] = filepath.Base(os.Args[0])
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that a terminal's Ctrl-C does not reach it
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, nil, fmt.Errorf("orphan killer: %w", err)
	}
	return w, func() {
		w.Close()
		_ = cmd.Wait() // the child reaper may have reaped it already; then Wait returns an error
	}, nil
}

// NewKillOrphans is the command that startOrphanKiller runs.
func NewKillOrphans() *cobra.Command {
	return &cobra.Command{
		Use: killOrphansCommand, Hidden: true, Args: cmdline.OneArg,
		RunE: func(_ *cobra.Command, args []string) error {
			instance, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil {
				return err
			}
			var b [1]byte
			for {
				if _, err := os.Stdin.Read(b[:]); err != nil {
					break
				}
			}
			host.Instance(instance).KillLeftovers(time.Minute) // there is no hurry
			return nil
		},
	}
}
