package main

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// tty is a child with a terminal of its own. NAME.out has its output there.
type tty struct {
	master *os.File
	slave  *os.File // stays open, for the terminal's modes
	before unix.Termios
	seen   int // bytes of NAME.out that `sees` has passed
}

type ttysKey struct{}

func ttys(ts *testscript.TestScript) map[string]*tty {
	return ts.Value(ttysKey{}).(map[string]*tty)
}

func theTTY(ts *testscript.TestScript, neg bool, args []string, n int, usage string) *tty {
	if neg || len(args) < n || ttys(ts)[args[0]] == nil {
		ts.Fatalf("usage: %s", usage)
	}
	return ttys(ts)[args[0]]
}

func parseSize(ts *testscript.TestScript, text string) *unix.Winsize {
	cols, rows, _ := strings.Cut(text, "x")
	c, err1 := strconv.Atoi(cols)
	r, err2 := strconv.Atoi(rows)
	if err := errors.Join(err1, err2); err != nil {
		ts.Fatalf("size %s: %v", text, err)
	}
	return &unix.Winsize{Col: uint16(c), Row: uint16(r)}
}

// tty NAME COLSxROWS PROGRAM ARGS… starts a program with a terminal; `signal` and `ends` work with it, too.
func cmdTTY(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: tty NAME COLSxROWS PROGRAM ARGS…")
	}
	name := args[0]
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	ts.Check(err)
	t := &tty{master: os.NewFile(uintptr(fd), "ptmx")}
	ts.Check(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	ts.Check(unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, parseSize(ts, args[1])))
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		ts.Fatalf("TIOCGPTPEER: %v", errno)
	}
	t.slave = os.NewFile(slave, "tty")
	before, err := unix.IoctlGetTermios(int(slave), unix.TCGETS)
	ts.Check(err)
	t.before = *before
	out, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(name+".err"), nil, 0o600))
	cmd := command(ts, args[2:])
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.slave, t.slave, t.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	ts.Check(cmd.Start())
	c := &child{cmd, make(chan struct{})}
	go func() { _ = cmd.Wait(); close(c.exited) }() // ends with the program, which Defer ends
	read := make(chan struct{})
	go func() { // ends when the master is closed; Defer waits for it
		defer close(read)
		buf := make([]byte, 4<<10)
		for {
			n, err := t.master.Read(buf)
			_, _ = out.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	children(ts)[name], ttys(ts)[name] = c, t
	ts.Defer(func() {
		select {
		case <-c.exited:
		default:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			select {
			case <-c.exited:
			case <-time.After(patience):
				_ = cmd.Process.Signal(syscall.SIGKILL)
				<-c.exited
			}
		}
		t.slave.Close()
		t.master.Close()
		<-read
		out.Close()
	})
}

// type NAME TEXT types into a terminal. \r, \x10 and so on mean the same as in Go.
func cmdType(ts *testscript.TestScript, neg bool, args []string) {
	t := theTTY(ts, neg, args, 2, "type NAME TEXT")
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	_, err = t.master.Write([]byte(text))
	ts.Check(err)
}

// sees NAME PATTERN waits until the program has printed PATTERN after the last match.
func cmdSees(ts *testscript.TestScript, neg bool, args []string) {
	t := theTTY(ts, neg, args, 2, "sees NAME PATTERN")
	want := regexp.MustCompile(args[1])
	poll(ts, args[1]+" in "+args[0], func() bool {
		text := ts.ReadFile(args[0] + ".out")[t.seen:]
		at := want.FindStringIndex(text)
		if at == nil {
			return false
		}
		t.seen += at[1]
		return true
	})
}

// winsize NAME COLSxROWS changes a terminal's size.
func cmdWinsize(ts *testscript.TestScript, neg bool, args []string) {
	t := theTTY(ts, neg, args, 2, "winsize NAME COLSxROWS")
	ts.Check(unix.IoctlSetWinsize(int(t.slave.Fd()), unix.TIOCSWINSZ, parseSize(ts, args[1])))
}

// restored NAME checks that a terminal has its original modes.
func cmdRestored(ts *testscript.TestScript, neg bool, args []string) {
	t := theTTY(ts, neg, args, 1, "restored NAME")
	now, err := unix.IoctlGetTermios(int(t.slave.Fd()), unix.TCGETS)
	ts.Check(err)
	if *now != t.before {
		ts.Fatalf("modes %+v, were %+v", *now, t.before)
	}
}

// cook NAME gives a terminal its original modes, as a shell does when its job stops.
func cmdCook(ts *testscript.TestScript, neg bool, args []string) {
	t := theTTY(ts, neg, args, 1, "cook NAME")
	ts.Check(unix.IoctlSetTermios(int(t.slave.Fd()), unix.TCSETS, &t.before))
}

// raw NAME waits until a terminal is in raw mode.
func cmdRaw(ts *testscript.TestScript, neg bool, args []string) {
	t := theTTY(ts, neg, args, 1, "raw NAME")
	poll(ts, args[0]+" to be raw", func() bool {
		now, err := unix.IoctlGetTermios(int(t.slave.Fd()), unix.TCGETS)
		ts.Check(err)
		return now.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) == 0
	})
}
