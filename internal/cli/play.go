package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"trl/internal/cmdline"
	"trl/runtime/cast"
	"trl/runtime/screen"
)

func newPlay() *cobra.Command {
	var (
		t       *target
		p       player
		markers bool
	)
	cmd := &cobra.Command{
		Use:   "play RECORDING|FILE|-",
		Short: "Play a recording",
		Long: `Play a recording in this terminal: one of the gateway's (its id), or an asciicast v2 or v3 from a file or stdin.
If stdout is not a terminal, the output is written at once.

  Space      pause, continue
  .          while paused: the next output
  ]          go to the next mark, usually a command
  + -        faster, slower
  q, Ctrl-C  quit

Afterwards the terminal is as before. A recording that is larger than the window does not fit: make the window larger.`,
		Example: `  trl play work.cast
  trl play -s 2 -i 1s RECORDING
  trl play --markers work.cast`,
		Args: cmdline.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !(p.speed > 0 && p.speed <= maxSpeed) || p.idle < 0 {
				return cmdline.UsageErrorWithHint(errors.New("--speed and --idle"), "want a speed above 0, at most %d, and no time below 0", maxSpeed)
			}
			from, err := t.recording(cmd, args[0])
			if err != nil {
				return err
			}
			defer from.Close()
			if p.r, err = cast.NewReader(from); err != nil {
				return cmdline.WithHint(fmt.Errorf("%s: %w", args[0], err), "trl recordings get, and asciinema rec, make such files")
			}
			if limit := p.r.Header.IdleLimit; !cmd.Flags().Changed("idle") && limit > 0 && limit < 1e6 {
				p.idle = time.Duration(limit * float64(time.Second))
			}
			p.out = cmd.OutOrStdout()
			if markers {
				return p.listMarks()
			}
			if _, err := unix.IoctlGetTermios(1, unix.TCGETS); err != nil {
				return p.writeOutput()
			}
			return p.playInTerminal(cmd.Context())
		},
	}
	t = connectionWithoutJSON(cmd)
	cmd.Flags().Float64VarP(&p.speed, "speed", "s", 1, "play so many times as fast")
	cmd.Flags().DurationVarP(&p.idle, "idle", "i", 0, "wait for so long at most when nothing happened (default: as the recording says)")
	cmd.Flags().BoolVar(&markers, "markers", false, "list the marks, do not play")
	return cmd
}

// maxSpeed is a speed at which every pause is too short to notice.
const maxSpeed = 1000

// recording opens the recording to play: stdin, a file, or a recording of the gateway.
func (t *target) recording(cmd *cobra.Command, arg string) (io.ReadCloser, error) {
	if arg == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	f, err := os.Open(arg)
	switch {
	case err == nil:
		return f, nil
	case kindOf(arg) == recordingID:
		return t.download(cmd, arg, false)
	case errors.Is(err, fs.ErrNotExist):
		return nil, cmdline.WithHint(fmt.Errorf("no file %q, and no recording id (r-…)", arg), "see `trl recordings`")
	}
	return nil, err
}

// player plays one recording.
type player struct {
	r     *cast.Reader
	out   io.Writer
	speed float64
	idle  time.Duration // longest pause; 0: no bound
}

// eachEvent calls f for every event.
func (p *player) eachEvent(f func(cast.Event) error) error {
	for {
		e, err := p.r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// writeOutput writes the recorded output without pauses, for programs.
func (p *player) writeOutput() error {
	return p.eachEvent(func(e cast.Event) (err error) {
		if e.Code == cast.Output {
			_, err = io.WriteString(p.out, e.Data)
		}
		return err
	})
}

func (p *player) listMarks() error {
	var rows [][]string
	err := p.eachEvent(func(e cast.Event) error {
		if e.Code == cast.Mark {
			rows = append(rows, []string{formatOffset(e.At), cmdline.Shorten(e.Data, 120)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return cmdline.PrintTable(p.out, []string{"TIME", "MARK"}, rows)
}

// formatOffset formats a time within a recording for people.
func formatOffset(at time.Duration) string {
	s := at.Truncate(100 * time.Millisecond)
	return fmt.Sprintf("%d:%02d:%04.1f", int(s.Hours()), int(s.Minutes())%60, (s % time.Minute).Seconds())
}

// errQuit ends playInTerminal when the user quits.
var errQuit = errors.New("quit")

// playInTerminal plays in our terminal and restores it in every case. It reads keys from /dev/tty, because stdin may be the recording.
func (p *player) playInTerminal(ctx context.Context) (err error) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	go func() { // ends with ctx
		select {
		case s := <-signals:
			leave(cmdline.ExitBySignal(s))
		case <-ctx.Done():
		}
	}()
	keys := make(chan byte)
	if tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0); err == nil {
		defer tty.Close()
		fd := int(tty.Fd())
		_, restore, err := makeRaw(fd)
		if err != nil {
			return err
		}
		defer func() {
			_ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) // discard the terminal's answers to queries in the recording
			restore()
		}()
		go readKeys(ctx, tty, keys) // ends with ctx and the next key, or with the program: a read from a terminal cannot be cancelled
	}
	alternate := screen.NewMarks("")
	defer func() {
		if alternate.Alternate() {
			fmt.Fprint(p.out, "\x1b[?1049l")
		}
		fmt.Fprint(p.out, resetModes)
	}()
	c := playback{player: p, keys: keys}
	err = p.eachEvent(func(e cast.Event) error {
		if err := c.waitFor(ctx, e); err != nil || e.Code != cast.Output {
			return err
		}
		alternate.Write([]byte(e.Data))
		_, err := io.WriteString(p.out, e.Data)
		return err
	})
	if errors.Is(err, errQuit) {
		return nil
	}
	return err
}

// readKeys passes on keys. It drops arrow keys and the terminal's answers to queries in the recording.
func readKeys(ctx context.Context, tty io.Reader, keys chan<- byte) {
	buf := make([]byte, 256)
	var in escapeFilter
	for {
		n, err := tty.Read(buf)
		if err != nil {
			return
		}
		for _, key := range buf[:n] {
			if !in.key(key) {
				continue
			}
			select {
			case keys <- key:
			case <-ctx.Done():
				return
			}
		}
	}
}

// escapeFilter tells keys from the bytes of escape sequences.
type escapeFilter struct {
	in byte // the introducer of the sequence that is being read; 0: none
}

func (s *escapeFilter) key(c byte) bool {
	switch {
	case s.in == 0:
		if c == 0x1b {
			s.in = c
		}
		return s.in == 0
	case s.in == 0x1b: // [ and O have at least one more byte, a string has a terminator, and every other sequence ends here
		if s.in = 0; strings.IndexByte("[OP]_^X", c) >= 0 {
			s.in = c
		}
	case s.in == '[':
		if c >= 0x40 && c <= 0x7e {
			s.in = 0
		}
	case s.in == 'O', c == 0x07:
		s.in = 0
	case c == 0x1b: // the ESC of the terminator ESC \
		s.in = c
	}
	return false
}

// playback is the state of playInTerminal.
type playback struct {
	*player
	keys    <-chan byte
	at      time.Duration // time of the latest event in the recording
	stopped bool
	skip    bool // play without pauses up to the next mark
}

// waitFor waits until it is time for e, and meanwhile handles keys.
func (c *playback) waitFor(ctx context.Context, e cast.Event) error {
	left := e.At - c.at
	if c.idle > 0 {
		left = min(left, c.idle)
	}
	c.at = e.At
	if c.skip {
		c.skip = e.Code != cast.Mark
		return context.Cause(ctx)
	}
	for {
		var due <-chan time.Time
		began := time.Now()
		switch {
		case !c.stopped:
			due = time.After(time.Duration(float64(left) / c.speed)) // also without a pause, so that keys work during a flood of output
		case e.Code != cast.Output: // an event that shows nothing need not wait
			return nil
		}
		select {
		case <-due:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case key := <-c.keys:
			if !c.stopped {
				left -= time.Duration(float64(time.Since(began)) * c.speed)
			}
			switch key {
			case ' ':
				c.stopped = !c.stopped
			case '.':
				if c.stopped {
					return nil
				}
			case ']':
				c.skip = e.Code != cast.Mark
				return nil
			case '+':
				c.speed = min(2*c.speed, maxSpeed)
			case '-':
				c.speed = max(c.speed/2, 1./maxSpeed)
			case 'q', 'Q', 3, 4: // in raw mode Ctrl-C and Ctrl-D send no signal
				return errQuit
			}
		}
	}
}
