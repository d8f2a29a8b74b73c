package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"trl/internal/cmdline"
	"trl/internal/statedir"
	"trl/runtime/procfs"
)

// upgradeTimeout is longer than twice the time that the keeper waits for a new gateway.
const upgradeTimeout = 90 * time.Second

func NewUpgrade() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "upgrade", Short: "Replace the program of a running gateway by its current file",
		Long: `Replace the gateway of a state directory by the program file that is now at the path from which it was started. The new gateway
starts next to the old one and takes over when it is ready. Sessions, running commands and the listening socket stay, and clients
connect again. If the new gateway does not start, nothing changes. Then the keeper becomes the new program, too: the same process,
with everything that it holds.

SIGHUP to the keeper (systemctl reload) does the same without waiting for the result. So does SIGUSR1, which nohup does not make
it ignore; trl upgrade sends both. If the protocol between keeper and gateway has changed, the new gateway is refused, and a
restart is needed.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := target{stateDir: dir}
			for _, dir := range t.stateDirs() {
				if err := upgrade(cmd.Context(), dir); !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
			return cmdline.WithHint(t.notFound(), "say which gateway with --state-dir; one with --single-process cannot be upgraded")
		},
	}
	cmd.Flags().StringVar(&dir, "state-dir", os.Getenv("TRL_STATE_DIR"), "the gateway's state dir (TRL_STATE_DIR; default: the user's, then the system's)")
	return cmd
}

// upgrade signals the keeper of a state dir and waits for the outcome.
func upgrade(ctx context.Context, dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, statedir.KeeperFile))
	if err != nil {
		return fmt.Errorf("keeper of %s: %w", dir, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 1 { // in a container the keeper may be process 1
		return fmt.Errorf("keeper of %s: %q is not a process id", dir, text)
	}
	if locked, err := statedir.IsLocked(dir); err != nil || !locked { // without the lock the pid may already belong to another process
		return errors.Join(fmt.Errorf("keeper of %s: %w", dir, fs.ErrNotExist), err)
	}
	outcome := filepath.Join(dir, statedir.UpgradeFile)
	if err := os.Remove(outcome); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch { // these cases would never get an answer
	case procfs.IsDescendant(os.Getpid(), pid):
		return cmdline.WithHint(errors.New("upgrade: from inside a session the keeper accepts no signals"), "run trl upgrade outside of this gateway's sessions")
	case procfs.Stopped(pid):
		return cmdline.WithHint(fmt.Errorf("upgrade: the keeper, process %d, is stopped and answers nobody", pid), "kill -CONT %d", pid)
	}
	// A launcher can have SIGHUP ignored (nohup). A keeper takes both signals for one request; an old keeper knows only SIGHUP.
	for _, sig := range []syscall.Signal{unix.SIGUSR1, unix.SIGHUP} {
		if err := unix.Kill(pid, sig); err != nil {
			return cmdline.WithHint(fmt.Errorf("%s to the keeper, process %d: %w", unix.SignalName(sig), pid, err), "run this as the gateway's user")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	for pause := time.NewTicker(20 * time.Millisecond); ; {
		text, err := os.ReadFile(outcome)
		switch {
		case err == nil && len(text) == 0:
			return nil
		case err == nil:
			return cmdline.WithHint(fmt.Errorf("upgrade refused: %s", strings.TrimSpace(string(text))), "the old program continues; the log has more")
		}
		select {
		case <-pause.C:
			if locked, err := statedir.IsLocked(dir); err == nil && !locked {
				return cmdline.WithHint(fmt.Errorf("upgrade: the keeper, process %d, has ended meanwhile, and every session with it", pid), "the gateway's log says why; start trl serve again")
			}
		case <-ctx.Done():
			return cmdline.WithHint(fmt.Errorf("upgrade: no outcome within %v", upgradeTimeout), "the gateway's log says whether the keeper was asked; an older trl that was started with SIGHUP ignored (nohup) cannot be: restart it")
		}
	}
}
