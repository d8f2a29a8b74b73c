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
	"trl/runtime"
	"trl/web/auth"
	"trl/web/listen"
)

// --user and --session-user: who may do what beside root's keeper. Sessions run as their user by the keeper's doing
// (runtime/confinement.go); what a gateway needs that is another user is here.

// grantGateway lets the gateway's user have what it needs of the state dir: to look into it and to read the tokens, and a
// directory for recordings. It can write nothing else in there, since root reads and replaces files in it. What only a gateway knows otherwise, its address, is
// written now: who comes before it serves waits. The result is the gateway's environment.
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
		if err == nil { // its owner may have taken it away
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

// clearEnvironment drops the variables that are not for sessions, and a TMPDIR that sessions of another user, or in a sandbox, cannot
// use. In a sandbox it returns the pid of the process that stands for this one outside.
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

// The orphan killer is there for the end of a keeper that is killed: what is left of its sessions must end, and a gateway that is
// not root may not do that. It is root, has nothing but the end of a pipe whose other end is the keeper's, and waits.
const killOrphansCommand = "kill-orphans"

// startOrphanKiller starts one. It ends when end is called, or with this process: when nobody has w open.
func startOrphanKiller(instance runtime.Instance) (w *os.File, end func(), err error) {
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's Ctrl-C is not for it
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, nil, fmt.Errorf("orphan killer: %w", err)
	}
	return w, func() {
		w.Close()
		_ = cmd.Wait() // the child reaper may have been first; it finds nobody
	}, nil
}

// NewKillOrphans is for startOrphanKiller alone.
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
			runtime.Instance(instance).KillLeftovers(time.Minute) // it has the time
			return nil
		},
	}
}
