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

// defaultDetach is docker's default: no shell binds these two keys one after the other.
const defaultDetach = "ctrl-p,ctrl-q"

const detachHelp = "leave the terminal, which runs on, at these `keys` (comma-separated: a, ctrl-a, ctrl-[ …; empty: never)"

func newTerm() *cobra.Command {
	var f runFlags
	var keys string
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
			o := client.TerminalOptions{Cols: cols, Rows: rows, Cwd: f.cwd, Env: f.variables(), Record: f.record}
			if len(args) > 0 {
				if o.Command, _, err = f.request(args); err != nil {
					return err
				}
			}
			ctx := cmd.Context()
			c, err := f.dial(ctx, printLostInRaw)
			if err != nil {
				return err
			}
			defer c.Close()
			var term *client.Terminal
			one := f.namesSession()
			if one {
				_, term, err = c.CreateSessionWithTerminal(ctx, f.sessionOptions(), o)
			}
			if !one || client.IsForbidden(err) { // a guest makes no session
				err = f.inSession(ctx, c, func(in *client.Session) error {
					term, err = in.OpenTerminal(ctx, o)
					return err
				})
			}
			if err != nil {
				return addHint(err)
			}
			return runTerminal(ctx, term, true, detach)
		},
	}
	f.addTo(cmd, connectionWithoutJSON(cmd), "open it in this session (`name` or id)")
	cmd.Flags().StringVar(&f.cwd, "cwd", "", "start in this `directory` of the gateway's machine")
	cmd.Flags().StringArrayVarP(&f.env, "env", "e", nil, "set a variable for this terminal (`K=V`; K alone: as it is here; repeatable)")
	cmd.Flags().BoolVar(&f.record, "record", false, "record it (see trl recordings)")
	cmd.Flags().StringVar(&keys, "detach-keys", defaultDetach, detachHelp)
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
			o := client.AttachOptions{Cols: cols, Rows: rows}
			if view {
				o.Mode = "view"
			}
			term, err := c.AttachTerminal(ctx, id, &o)
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

// terminalOf returns the id of a terminal: arg itself if it is an id, otherwise the latest running terminal of the session arg.
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

// onlyTerminal returns the id of the only running terminal of all sessions.
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

// terminalSize returns the size of our terminal. It returns an error if stdin or stdout is not a terminal.
func terminalSize() (cols, rows int, err error) {
	for fd, name := range []string{"stdin", "stdout"} {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
			return 0, 0, cmdline.WithHint(fmt.Errorf("%s is not a terminal", name), "`trl run` needs none")
		}
	}
	w, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, fmt.Errorf("size of the terminal: %w", err)
	}
	if w.Col == 0 || w.Row == 0 { // nobody has set the size of this terminal, as on a serial line
		return 80, 24, nil
	}
	return min(int(w.Col), protocol.MaxSize), min(int(w.Row), protocol.MaxSize), nil
}

func printLostInRaw(why error) {
	fmt.Fprintf(os.Stderr, "\r\ntrl: connection lost (%s), connecting again\r\n", cmdline.Printable(why.Error()))
}

// makeRaw makes our terminal pass on every key. again makes it raw again; restore restores its settings from before.
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

// resetModes switches off the modes that programs switch on and that our terminal must not keep after them: mouse reports, bracketed paste,
// focus events. The soft reset (DECSTR) resets margins, colours, a hidden cursor and keypad modes.
const resetModes = "\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?2004l\x1b[!p\x1b[?25h\x1b[m"

// runTerminal connects our terminal to t until t ends, the user types the detach keys, or a signal arrives. It restores our terminal in
// every case.
func runTerminal(ctx context.Context, t *client.Terminal, control bool, detach []byte) (err error) {
	defer t.Detach()
	again, restore, err := makeRaw(0)
	if err != nil {
		return err
	}
	marks := screen.NewMarks("") // only tells whether the alternate screen is shown
	last := ""
	if id := t.RecordingID(); id != "" { // the screen that attach draws covers this line, so last repeats it at the end
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
		e, err := t.Next(ctx)
		switch {
		case errors.Is(err, errDetached):
			last += fmt.Sprintf("[left %s, which runs on: trl attach %s]\r\n", t.ID(), t.ID())
			return nil
		case errors.Is(err, io.EOF):
			return exitCodeOf(t.Exit().ExitCode)
		case err != nil:
			return addHint(err)
		}
		if e.Type == client.EventControl {
			l.controlPassed(e.Control)
			continue
		}
		marks.Write(e.Data)
		if _, err := os.Stdout.Write(e.Data); err != nil {
			return fmt.Errorf("terminal: %w", err)
		}
	}
}

// errDetached ends runTerminal after the detach keys.
var errDetached = errors.New("detached")

// controlState says whether we have control, or only watch because another client has it.
type controlState struct {
	terminal *client.Terminal
	control  bool          // set once; we asked for control
	makeRaw  func()        // set once; makes our terminal raw again
	lost     atomic.Bool   // another client has taken control
	regained chan struct{} // holds a token after we got control again: the screen must be drawn anew
}

// takeOverKey takes control back. It is one key, because nothing that is typed while we only watch goes anywhere; and it is a key that
// nobody types by habit.
const takeOverKey = 't' & 0x1f

// controlPassed handles the news that control has passed to or from us. The reader calls it, so it must not wait for an answer of the
// gateway.
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

// showStatus writes on the last line, in reverse video, who has control. It keeps the cursor and the colours. The next screen overwrites
// the line.
func (l *controlState) showStatus(who string) {
	cols, rows, err := terminalSize()
	if err != nil {
		return
	}
	words := []rune(fmt.Sprintf("[%s has control in another window; Ctrl-T takes it back]", who))
	fmt.Fprintf(os.Stdout, "\x1b7\x1b[%d;1H\x1b[0;7m%s\x1b[0m\x1b[K\x1b8", rows, string(words[:min(len(words), cols)]))
}

// clearStatus removes the line of showStatus at the end, when no screen follows that would overwrite it.
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
			_ = l.terminal.Redraw(ctx) // if the request is lost, the next attach draws the screen
		case s := <-signals:
			switch s {
			case syscall.SIGWINCH:
				if cols, rows, err := terminalSize(); err == nil && l.control {
					_ = l.terminal.Resize(ctx, cols, rows) // if the request is lost, or refused, the next attach sends the size
				}
			case syscall.SIGCONT: // while we were stopped, the shell restored its own modes and wrote on the screen
				l.makeRaw()
				_ = l.terminal.Redraw(ctx)
			default:
				leave(cmdline.ExitBySignal(s))
				return
			}
		}
	}
}

// maxTypedAhead bounds the typed bytes that wait while the gateway cannot be reached or accepts nothing. Later keys, also the detach keys,
// wait in our terminal.
const maxTypedAhead = 64 << 10

// flushTimeout bounds the wait for the keys that were typed before the detach keys: a lost connection must not delay the detach for longer.
const flushTimeout = time.Second

// typeKeys reads keys and finds the detach keys, even while sendKeys waits for the gateway.
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

// send types p. If another client has control, it instead takes control back when p contains takeOverKey, and otherwise rings the bell.
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
	return fatalInputError(l.terminal.Write(ctx, p))
}

// fatalInputError returns the errors that must end runTerminal. A lost connection is not one of them: Next reports it if it is lost for
// good. Nobody knows then whether the typed keys arrived, so the bell rings.
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
	case protocol.LimitExceeded, protocol.Forbidden: // the terminal cannot take such a long line; or we have just lost control
		fmt.Fprint(os.Stdout, "\a")
		return nil
	case protocol.StdinClosed: // the terminal's end is on its way
		return nil
	}
	return err
}

// detachDetector finds the detach keys in typed bytes. It holds back bytes that may be the beginning of the keys.
type detachDetector struct {
	keys    []byte
	matched int // how many bytes of keys the latest input matches
}

// feed returns the bytes to type, and whether p completed the detach keys.
func (d *detachDetector) feed(p []byte) (out []byte, found bool) {
	if len(d.keys) == 0 {
		return p, false
	}
	for _, c := range p {
		for d.matched > 0 && c != d.keys[d.matched] {
			// Find the longest suffix of the held bytes that is a prefix of keys, as in Knuth-Morris-Pratt.
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
