package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"trl/client"
	"trl/internal/cmdline"
	"trl/protocol"
	"trl/runtime/screen"
)

// defaultDetach is docker's: two keys that no shell binds one after the other.
const defaultDetach = "ctrl-p,ctrl-q"

const detachHelp = "leave the terminal, which runs on, at these `keys` (comma-separated: a, ctrl-a, ctrl-[ …; empty: never)"

func newTerm() *cobra.Command {
	var (
		t       *target
		session cmdline.NonEmpty
		cwd     string
		env     []string
		keys    string
		record  bool
	)
	cmd := &cobra.Command{
		Use:   "term [flags] [-- COMMAND…]",
		Short: "Open a terminal in a session and attach to it",
		Long: `Open a terminal in a session, with the session's shell or a command in it, and attach to it.
The terminal starts in the session's directory with its exported variables. Without --session trl uses your session "default".
It makes a session that does not exist yet.

The exit code is that of the program in the terminal; 128+n if signal n ended it. Ctrl-P Ctrl-Q leaves the terminal running, and
trl attach returns to it.`,
		Example: `  trl term
  trl term --session build -- htop`,
		RunE: func(cmd *cobra.Command, args []string) error {
			detach, err := parseKeys(keys)
			if err != nil {
				return err
			}
			cols, rows, err := terminalSize()
			if err != nil {
				return err
			}
			f := runFlags{target: t, cwd: cwd, env: env, session: session}
			q := protocol.TermOpen{Cols: cols, Rows: rows, WorkingDir: cwd, Record: record}
			if len(args) > 0 {
				x, err := f.request(args)
				if err != nil {
					return err
				}
				q.Command = x.Command
			}
			q.Env = f.variables()
			if session != "" {
				q.SessionRef = sessionRef(string(session))
			}
			ctx := cmd.Context()
			c, err := t.dial(ctx, printLostInRaw)
			if err != nil {
				return err
			}
			defer c.Close()
			var term *client.Terminal
			err = inSession(ctx, c, q.Session, func() error {
				term, err = c.OpenTerminal(ctx, q)
				return err
			})
			if err != nil {
				return addHint(err)
			}
			return runTerminal(ctx, term, true, detach)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the command belongs to it
	t = connectionWithoutJSON(cmd)
	cmd.Flags().VarP(&session, "session", "s", "open it in this session (`name` or id)")
	cmd.Flags().StringVar(&cwd, "cwd", "", "start in this `directory` of the gateway's machine")
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "set a variable for this terminal (`K=V`; K alone: as it is here; repeatable)")
	cmd.Flags().BoolVar(&record, "record", false, "record it (see trl recordings)")
	cmd.Flags().StringVar(&keys, "detach-keys", defaultDetach, detachHelp)
	_ = cmd.RegisterFlagCompletionFunc("session", completeSessions(t))
	return cmd
}

func newAttach() *cobra.Command {
	var (
		t    *target
		view bool
		keys string
	)
	cmd := &cobra.Command{
		Use:   "attach [TERM|SESSION]",
		Short: "Attach to a terminal, and take it over",
		Long: `Attach to a terminal (its id), to the latest one of a session (name or id), or to the only one that runs.
The current screen is drawn first.

Several clients may be attached. The latest one has control: it types and sets the size. With --view this client takes no control.
A client that loses control is told so and watches. It gets control back by Ctrl-T, or when the other one leaves.

The exit code is that of the program in the terminal; 0 after Ctrl-P Ctrl-Q, which leaves it running.`,
		Args: cmdline.MaybeOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			detach, err := parseKeys(keys)
			if err != nil {
				return err
			}
			cols, rows, err := terminalSize()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			c, err := t.dial(ctx, printLostInRaw)
			if err != nil {
				return err
			}
			defer c.Close()
			id := ""
			if len(args) == 0 {
				id, err = onlyTerminal(ctx, c)
			} else {
				id, err = terminalOf(ctx, c, args[0])
			}
			if err != nil {
				return addHint(err)
			}
			term, err := c.AttachTerminal(ctx, id, !view, cols, rows)
			if err != nil {
				return addHint(err)
			}
			return runTerminal(ctx, term, !view, detach)
		},
	}
	t = connectionWithoutJSON(cmd)
	cmd.Flags().BoolVar(&view, "view", false, "look, without typing or setting the size")
	cmd.Flags().StringVar(&keys, "detach-keys", defaultDetach, detachHelp)
	cmd.ValidArgsFunction = completeSessions(t)
	return cmd
}

// terminalOf finds which terminal is meant: the id itself, or the latest that runs in the session.
func terminalOf(ctx context.Context, c *client.Client, arg string) (string, error) {
	if kindOf(arg) == terminalID {
		return arg, nil
	}
	var all protocol.Terminals
	if err := c.Call(ctx, "term.list", sessionRef(arg), &all); err != nil {
		return "", err
	}
	id := ""
	for _, t := range all.Terminals {
		if t.State == "running" {
			id = t.TermID
		}
	}
	if id == "" {
		return "", cmdline.WithHint(fmt.Errorf("session %s has no terminal", arg), "open one with `trl term --session %s`", arg)
	}
	return id, nil
}

// onlyTerminal is the one that runs, in whichever session.
func onlyTerminal(ctx context.Context, c *client.Client) (string, error) {
	var sessions protocol.Sessions
	if err := c.Call(ctx, "session.list", protocol.SessionList{}, &sessions); err != nil {
		return "", err
	}
	var ids, words []string
	for _, s := range sessions.Sessions {
		var all protocol.Terminals
		if s.Terminals == 0 {
			continue
		}
		if err := c.Call(ctx, "term.list", protocol.SessionRef{SessionID: s.SessionID}, &all); err != nil {
			return "", err
		}
		for _, t := range all.Terminals {
			if t.State == "running" {
				ids, words = append(ids, t.TermID), append(words, fmt.Sprintf("%s in %s: %s", t.TermID, cmp.Or(s.Name, s.SessionID), cmdline.Shorten(t.Command, 40)))
			}
		}
	}
	switch len(ids) {
	case 0:
		return "", cmdline.WithHint(errors.New("no terminal runs"), "open one with `trl term`")
	case 1:
		return ids[0], nil
	}
	return "", cmdline.WithHint(fmt.Errorf("%d terminals run: %s", len(ids), strings.Join(words, "; ")), "say which: trl attach TERM")
}

// terminalSize is the size of our terminal; an error where we have none.
func terminalSize() (cols, rows int, err error) {
	for fd, name := range []string{"stdin", "stdout"} {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
			return 0, 0, cmdline.WithHint(fmt.Errorf("%s is no terminal", name), "`trl run` needs none")
		}
	}
	w, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, fmt.Errorf("size of the terminal: %w", err)
	}
	if w.Col == 0 || w.Row == 0 { // a terminal that nobody gave a size, as over a serial line
		return 80, 24, nil
	}
	return min(int(w.Col), protocol.MaxSize), min(int(w.Row), protocol.MaxSize), nil
}

func printLostInRaw(why error) {
	fmt.Fprintf(os.Stderr, "\r\ntrl: connection lost (%s), connecting again\r\n", cmdline.Printable(why.Error()))
}

// makeRaw makes our terminal pass every key on, and returns what does so again and what puts it back.
func makeRaw(fd int) (again, restore func(), err error) {
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	mode := *before
	mode.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	mode.Oflag &^= unix.OPOST
	mode.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	mode.Cflag = mode.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	mode.Cc[unix.VMIN], mode.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &mode); err != nil {
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	set := func(mode *unix.Termios) func() { return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETSW, mode) } }
	return set(&mode), set(before), nil
}

// resetModes takes back what programs switch on and a terminal that they no longer run in must not have: mouse reports,
// bracketed paste, focus events; and by a soft reset (DECSTR) margins, colours, a hidden cursor, keypad modes.
const resetModes = "\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?2004l\x1b[!p\x1b[?25h\x1b[m"

// runTerminal is our time at a terminal: until it ends, the detach keys, or a signal. On each way out our own terminal is as it was.
func runTerminal(ctx context.Context, t *client.Terminal, control bool, detach []byte) (err error) {
	defer t.Close()
	again, restore, err := makeRaw(0)
	if err != nil {
		return err
	}
	marks := screen.NewMarks("") // which only tells whether the alternate screen is shown
	last := ""
	if id := t.RecordingID(); id != "" { // what an attach draws covers it: it is said again at the end
		last = fmt.Sprintf("[recorded: trl play %s]\r\n", id)
		fmt.Fprintf(os.Stdout, "[this terminal is being recorded: %s]\r\n", id)
	}
	l := &controlState{terminal: t, control: control, makeRaw: again, regained: make(chan struct{}, 1)}
	defer func() {
		if l.lost.Load() {
			l.clearStatus()
		}
		if marks.Alternate() {
			fmt.Fprint(os.Stdout, "\x1b[?1049l")
		}
		fmt.Fprint(os.Stdout, resetModes+"\r\n"+last)
		restore()
	}()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(signals)
	go l.watchSignals(ctx, signals, leave) // ends with ctx
	go l.typeKeys(ctx, detach, leave)      // ends with the program: a read from a terminal cannot be given up

	for {
		k, err := t.Next(ctx)
		switch {
		case errors.Is(err, errDetached):
			last += fmt.Sprintf("[left %s, which runs on: trl attach %s]\r\n", t.ID(), t.ID())
			return nil
		case errors.Is(err, io.EOF):
			return terminalExit(t.Exit())
		case err != nil:
			return addHint(err)
		}
		if k.Control != nil {
			l.controlPassed(k.Control)
			continue
		}
		marks.Write(k.Data)
		if _, err := os.Stdout.Write(k.Data); err != nil {
			return fmt.Errorf("terminal: %w", err)
		}
	}
}

// terminalExit is how the terminal's end becomes ours.
func terminalExit(i protocol.TermInfo) error {
	return exitCodeOf(i.ExitCode)
}

// errDetached ends sit when the detach keys were typed.
var errDetached = errors.New("detached")

// controlState is whether we type, or look on while another client does.
type controlState struct {
	terminal *client.Terminal
	control  bool          // set once; we came to type
	makeRaw  func()        // set once; makes our terminal raw again
	lost     atomic.Bool   // another client has taken control
	regained chan struct{} // one token: we have control again, and a screen to put right
}

// takeOverKey takes control back. While we look on nothing that is typed goes anywhere, so one key does, and one that nobody
// types by habit.
const takeOverKey = 't' & 0x1f

// controlPassed is told that control has passed. The reader calls it, so it asks the gateway nothing.
func (l *controlState) controlPassed(c *protocol.TermControl) {
	l.lost.Store(c.Mode == "view")
	if c.Mode == "view" {
		who := "somebody"
		if c.By != nil {
			who = cmp.Or(c.By.Via, c.By.Subject)
		}
		l.showStatus(cmdline.Printable(who))
		return
	}
	select {
	case l.regained <- struct{}{}:
	default:
	}
}

// showStatus writes on the last line, in reverse, who has control, and leaves cursor and colours as they are. The next screen goes over it.
func (l *controlState) showStatus(who string) {
	cols, rows, err := terminalSize()
	if err != nil {
		return
	}
	words := []rune(fmt.Sprintf("[%s has control in another window; Ctrl-T takes it back]", who))
	fmt.Fprintf(os.Stdout, "\x1b7\x1b[%d;1H\x1b[0;7m%s\x1b[0m\x1b[K\x1b8", rows, string(words[:min(len(words), cols)]))
}

// clearStatus takes away what say wrote. Nothing else would: no screen follows.
func (l *controlState) clearStatus() {
	if _, rows, err := terminalSize(); err == nil {
		fmt.Fprintf(os.Stdout, "\x1b7\x1b[%d;1H\x1b[m\x1b[2K\x1b8", rows)
	}
}

func (l *controlState) watchSignals(ctx context.Context, signals <-chan os.Signal, leave func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.regained:
			_ = l.terminal.Redraw(ctx) // if it is lost, attaching again brings the screen
		case s := <-signals:
			switch s {
			case syscall.SIGWINCH:
				if cols, rows, err := terminalSize(); err == nil && l.control {
					_ = l.terminal.Resize(ctx, cols, rows) // if it is lost, or refused, attaching again says it
				}
			case syscall.SIGCONT: // a shell puts its own modes back when we are stopped, and writes on the screen
				l.makeRaw()
				_ = l.terminal.Redraw(ctx)
			default:
				leave(cmdline.ExitBySignal(s))
				return
			}
		}
	}
}

// maxTypedAhead is what may be typed while the gateway cannot be reached or takes nothing. More waits in our terminal, with the detach keys.
const maxTypedAhead = 64 << 10

// flushTimeout is what the keys before the detach keys have to go out: a connection that is lost for longer must not hold us.
const flushTimeout = time.Second

// typeKeys finds the detach keys, whatever sendKeys waits for.
func (l *controlState) typeKeys(ctx context.Context, detach []byte, leave func(error)) {
	d := detachDetector{keys: detach}
	buf := make([]byte, 4<<10)
	typed := make(chan byte, maxTypedAhead)
	sent := make(chan struct{})            // closed when sendKeys is done
	go l.sendKeys(ctx, typed, sent, leave) // ends when typed is closed, or with the program
	for {
		n, err := os.Stdin.Read(buf)
		if err != nil || n == 0 {
			leave(errDetached) // our terminal is gone
			return
		}
		p, left := d.feed(buf[:n])
		for _, c := range p {
			select {
			case typed <- c:
			case <-ctx.Done():
				return
			}
		}
		if left {
			close(typed)
			select {
			case <-sent:
			case <-time.After(flushTimeout):
			}
			leave(errDetached)
			return
		}
	}
}

func (l *controlState) sendKeys(ctx context.Context, typed <-chan byte, sent chan<- struct{}, leave func(error)) {
	defer close(sent)
	for c := range typed {
		p := []byte{c}
		for n := min(len(typed), 4<<10); n > 0; n-- {
			p = append(p, <-typed)
		}
		if !l.control {
			continue
		}
		if err := l.send(ctx, p); err != nil {
			leave(err)
			return
		}
	}
}

// send types, or takes control back, or does nothing where another client has it.
func (l *controlState) send(ctx context.Context, p []byte) error {
	if l.lost.Load() {
		if bytes.IndexByte(p, takeOverKey) < 0 {
			fmt.Fprint(os.Stdout, "\a")
			return nil
		}
		err := l.terminal.TakeOver(ctx)
		if err == nil {
			l.lost.Store(false)
		}
		return fatalInputError(err)
	}
	return fatalInputError(l.terminal.Input(ctx, p))
}

// fatalInputError is what of a failure ends our time here. Whether the connection is lost for good Next finds out; whether the keys that
// were on their way arrived nobody knows, which a bell says.
func fatalInputError(err error) error {
	var e *protocol.Error
	if err == nil {
		return nil
	}
	if !errors.As(err, &e) {
		fmt.Fprint(os.Stdout, "\a")
		return nil
	}
	switch e.Code {
	case protocol.LimitExceeded, protocol.Forbidden: // a line that the terminal cannot take; or control has just been lost
		fmt.Fprint(os.Stdout, "\a")
		return nil
	case protocol.StdinClosed: // its end is on the way
		return nil
	}
	return err
}

// detachDetector finds the detach keys in what is typed. What may be their beginning is held back until the next key.
type detachDetector struct {
	keys    []byte
	matched int // how many of keys were the last that came
}

// feed returns what is to be typed, and whether the keys came.
func (d *detachDetector) feed(p []byte) (out []byte, found bool) {
	if len(d.keys) == 0 {
		return p, false
	}
	for _, c := range p {
		for d.matched > 0 && c != d.keys[d.matched] {
			// The longest end of what was held and c that the keys begin with, as in every search for a word.
			out = append(out, d.keys[0])
			rest := d.keys[1:d.matched]
			d.matched = 0
			for n := len(rest); n > 0; n-- {
				if bytes.HasPrefix(d.keys, rest[len(rest)-n:]) {
					d.matched = n
					break
				}
			}
			out = append(out, rest[:len(rest)-d.matched]...)
		}
		if c != d.keys[d.matched] {
			out = append(out, c)
			continue
		}
		if d.matched++; d.matched == len(d.keys) {
			return out, true
		}
	}
	return out, false
}

// parseKeys reads --detach-keys.
func parseKeys(text string) (keys []byte, err error) {
	if text == "" {
		return nil, nil
	}
	for _, word := range strings.Split(text, ",") {
		name, ctrl := strings.CutPrefix(strings.ToLower(word), "ctrl-")
		switch {
		case ctrl && len(name) == 1 && (name[0] >= 'a' && name[0] <= 'z' || strings.ContainsAny(name, `@[\]^_`)):
			keys = append(keys, strings.ToUpper(name)[0]-'@')
		case !ctrl && len(word) == 1 && word[0] > ' ' && word[0] < 0x7f:
			keys = append(keys, word[0])
		default:
			return nil, cmdline.WithHint(fmt.Errorf("--detach-keys %q: no key %q", text, word), "write keys as a, ctrl-a or ctrl-], with commas between them")
		}
	}
	return keys, nil
}
