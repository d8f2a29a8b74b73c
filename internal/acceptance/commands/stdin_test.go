package commands

import (
	"encoding/base64"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"trl/internal/rig"
)

// python is a Python that is not a wrapper of somebody's.
func python(t *testing.T) string {
	t.Helper()
	for _, p := range []string{"/usr/bin/python3", "python3"} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	t.Skip("no python3")
	return ""
}

// C1: Nobody gave stdin: EOF at once, for every reader. C2: nor is the shell's own channel read.
func TestMissingStdinIsEOFAtOnce(t *testing.T) {
	g := rig.Shared(t, "c")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		for command, code := range map[string]int{
			"cat": 0, "read x": 1, "grep foo": 1, "sort": 0, "sh": 0, "bash": 0, "while read x; do :; done": 0, "cat | cat": 0, "(cat)": 0, "cat /dev/stdin": 0, "cat -": 0, "cat <&0": 0,
			"cat & wait": 0, "x=$(cat)": 0, python(t) + " -": 0, "head -n 1": 0, "xargs echo >/dev/null": 0, "dd 2>/dev/null": 0,
		} {
			start := time.Now()
			rig.Expect(t, c.Run(s, command, object{"timeout_s": 50}), code, "", "")
			rig.Within(t, command, start, 2*time.Second)
			rig.Expect(t, c.Run(s, "echo ok"), 0, "ok\n", "") // C2
			data, exit := c.Output(c.Stream(s, command, object{"timeout_s": 50}).Str("stream_id"), 0)
			if data != "" || exit.Num("exit_code") != code || exit.Yes("timed_out") {
				t.Errorf("%s as a stream: %q, %v", command, data, exit)
			}
		}
		p := c.Call("process.start", object{"session_id": s, "command": "cat; read x; echo $?"}).Str("process_id")
		if w := c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}}); w.Num("exit_code") != 0 {
			t.Errorf("process: %v", w)
		}
	})
}

// C2: What reads does not eat the commands that wait behind it.
func TestReaderDoesNotEatTheNextCommands(t *testing.T) {
	g := rig.Shared(t, "c")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		var ids []int
		for range 10 {
			for _, command := range []string{"cat", "read x y z", "cat <&0; head -c 100", "sh", "echo ok"} {
				ids = append(ids, c.Begin("exec.run", object{"session_id": s, "command": command}))
			}
		}
		for i, id := range ids {
			f := c.Answer(id)
			want := ""
			if i%5 == 4 {
				want = "ok\n"
			}
			if !f.OK || f.Data.Stdout() != want || f.Data.Stderr() != "" {
				t.Errorf("command %d: %+v, want %q", i, f, want)
			}
		}
		// Given stdin is the command's alone, too.
		rig.Expect(t, c.Run(s, "read a; echo $a", object{"stdin": "one\ntwo\necho three\n"}), 0, "one\n", "")
		rig.Expect(t, c.Run(s, "echo ok; cat"), 0, "ok\n", "")
	})
}

// C3: A reader that never gets anything can be cancelled, and the session is what it was.
func TestWaitingReaderCanBeCancelled(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "c")
	rig.EachShell(t, func(t *testing.T, sh string) {
		t.Parallel()
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, "kept=yes; mkfifo fifo.$$; fifo=$PWD/fifo.$$"), 0, "", "")
		for _, x := range []struct {
			command     string
			interactive bool
		}{{"cat /dev/stdin", true}, {"cat", true}, {"read x", true}, {"cat <$fifo", false}, {"cat $fifo", false}, {"read x <$fifo", false}, {": <$fifo", false}, {"exec 8<$fifo", false}, {"while read x; do :; done <$fifo", false}, {"echo a >$fifo", false}, {"x=$(cat $fifo)", false}} {
			params := object{}
			if x.interactive {
				params["interactive_stdin"] = true
			}
			stream := c.Stream(s, "echo begins; "+x.command, params)
			if begins := c.Event("exec.output"); begins.Str("data") != "begins\n" {
				t.Errorf("%s: %v", x.command, begins)
			}
			time.Sleep(rig.Pick(50*time.Millisecond, time.Second)) // it shall really wait
			start := time.Now()
			c.Call("exec.cancel", object{"exec_id": stream.Str("exec_id")})
			_, exit := c.Output(stream.Str("stream_id"), len("begins\n"))
			rig.Within(t, "cancel of "+x.command, start, 6*time.Second)
			if !exit.Yes("cancelled") || exit.Num("exit_code") == 0 || exit.Yes("timed_out") {
				t.Errorf("%s: %v", x.command, exit)
			}
			rig.Expect(t, c.Run(s, "echo $kept"), 0, "yes\n", "")
		}
	})
}

// openPTY is a new pseudo-terminal's master, and its slave for the process that gets it.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { master.Close() })
	var n, unlock int32
	for req, p := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlock, syscall.TIOCGPTN: &n} {
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), req, uintptr(unsafe.Pointer(p))); e != 0 {
			t.Fatal(e)
		}
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(int(n)), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// C4: Who asks a terminal finds none, even when the gateway was started from one.
func TestCommandFindsNoTerminal(t *testing.T) {
	master, slave := openPTY(t)
	g, err := rig.Launch(func(cmd *exec.Cmd) {
		cmd.Stdin = slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	})
	slave.Close()
	if err != nil {
		t.Fatal(err)
	}
	g.EndWith(t)
	if b, _ := os.ReadFile("/proc/" + strconv.Itoa(g.Pid) + "/stat"); strings.Fields(string(b))[6] == "0" {
		t.Fatal("the gateway has no terminal itself: nothing would be shown")
	}
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		fails := func(command string) object {
			t.Helper()
			r := c.Run(s, command, object{"timeout_s": 10})
			if r.Num("exit_code") == 0 {
				t.Errorf("%s: %v", command, r)
			}
			return r
		}
		fails("cat /dev/tty")
		fails("echo prompt >/dev/tty")
		fails("(read x </dev/tty)")
		fails("tty")
		fails("ssh -o StrictHostKeyChecking=ask -o ConnectTimeout=2 -p 1 nobody@127.0.0.1 true")
		if _, err := exec.LookPath("sudo"); err == nil && os.Getuid() != 0 {
			fails("sudo true")
		}
		if _, err := exec.LookPath("git"); err == nil {
			c.Run(s, "rm -rf repo; git init -q repo; cd repo; git config user.email a@b.c; git config user.name n; echo a >a; git add a")
			if r := fails("EDITOR= VISUAL= git commit"); r.Yes("timed_out") {
				t.Logf("git commit: %v", r)
			}
			rig.Expect(t, c.Run(s, "git commit -q -m x; git log --format=%s; cd .."), 0, "x\n", "")
		}
		if r := c.Run(s, python(t)+" -c 'import getpass; getpass.getpass()'", object{"timeout_s": 20}); r.Num("exit_code") == 0 {
			t.Errorf("getpass: %v", r)
		}
		p := c.Call("process.start", object{"session_id": s, "command": "cat /dev/tty"}).Str("process_id")
		if w := c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}}); w.Num("exit_code") == 0 {
			t.Errorf("process: %v", w)
		}
		rig.Expect(t, c.Run(s, "echo ok"), 0, "ok\n", "")
	})
	// Nobody wrote a prompt on the gateway's terminal.
	_ = master.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	b := make([]byte, 1000)
	if n, _ := master.Read(b); n > 0 {
		t.Errorf("on the gateway's terminal: %q", b[:n])
	}
}

// C5: What is given as stdin arrives as it is, to the byte, and ends.
func TestStdinArrivesByteForByte(t *testing.T) {
	g := rig.Shared(t, "c")
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, python(t)+" -", object{"stdin": "print(1)\n"}), 0, "1\n", "")
		rig.Expect(t, c.Run(s, "sh", object{"stdin": "echo $((1+1)); exit 3\n"}), 3, "2\n", "")
		bodies := []string{
			"a", "\n", "$ ' \" \\ ` `` $(id) ${x} !! %s \\n\n", "EOF\n'EOF'\nEOF\n", "no newline", "\x00", "tab\tbell\a\r\n", "日本語 ─ 🐧\n", "-n\n", string(all), strings.Repeat(string(all), 4000), strings.Repeat("x\n", 300_000),
			"__trl_e 1\n", "#trl\n. /dev/null\n", "\x1b[31m\x04\x03\x1a",
		}
		for _, body := range bodies {
			want := body
			rig.Expect(t, c.Run(s, "cat", object{"stdin": base64.StdEncoding.EncodeToString([]byte(body)), "stdin_encoding": "base64"}), 0, want, "")
			if strings.ToValidUTF8(body, "") == body {
				rig.Expect(t, c.Run(s, "cat", object{"stdin": body}), 0, want, "")
			}
			rig.Expect(t, c.Run(s, "wc -c", object{"stdin": base64.StdEncoding.EncodeToString([]byte(body)), "stdin_encoding": "base64"}), 0, strconv.Itoa(len(body))+"\n", "")
		}
		// Nobody reads it: no hang, and the next command does not get it.
		rig.Expect(t, c.Run(s, "true", object{"stdin": strings.Repeat("echo bad\n", 50_000)}), 0, "", "")
		rig.Expect(t, c.Run(s, "cat; echo ok"), 0, "ok\n", "")
		if f := c.Try("exec.run", object{"session_id": s, "command": "cat", "stdin": "not base64!", "stdin_encoding": "base64"}); f.Code() != "INVALID_PARAMS" {
			t.Errorf("bad base64: %+v", f)
		}
	})
}

// C6: stdin as it comes, then its end: the command sees EOF, and what it prints after that is not lost.
func TestOutputAfterStdinsEndIsNotLost(t *testing.T) {
	g := rig.Shared(t, "c")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		for command, want := range map[string]string{
			"cat": "b\na\nc\n", "tac": "c\na\nb\n", "sort": "a\nb\nc\n", "wc -l": "3\n", "cat >/dev/null; echo after; sleep 0.2; echo late": "after\nlate\n",
			"while read x; do echo \"<$x>\"; done; echo end": "<b>\n<a>\n<c>\nend\n", "sh -c 'cat; cat; echo end'": "b\na\nc\nend\n", "cat | cat": "b\na\nc\n", "exec cat": "b\na\nc\n",
		} {
			stream := c.Stream(s, command, object{"interactive_stdin": true})
			id := object{"exec_id": stream.Str("exec_id")}
			c.Call("exec.input", rig.With(id, object{"data": "b\na"}))
			c.Call("exec.input", rig.With(id, object{"data": base64.StdEncoding.EncodeToString([]byte("\nc\n")), "encoding": "base64"}))
			c.Call("exec.input", rig.With(id, object{"data": "", "eof": true}))
			data, exit := c.Output(stream.Str("stream_id"), 0)
			if data != want || exit.Num("exit_code") != 0 {
				t.Errorf("%s: %q, want %q; %v", command, data, want, exit)
			}
		}
		// Live: an answer to each line, before the next is sent.
		stream := c.Stream(s, "while read x; do echo got $x; done", object{"interactive_stdin": true})
		for _, word := range []string{"one", "two", "three"} {
			c.Call("exec.input", object{"exec_id": stream.Str("exec_id"), "data": word + "\n"})
			if e := c.Event("exec.output"); e.Str("data") != "got "+word+"\n" {
				t.Errorf("%v", e)
			}
		}
		c.Call("exec.input", object{"exec_id": stream.Str("exec_id"), "eof": true})
		c.Output(stream.Str("stream_id"), len("got one\ngot two\ngot three\n"))
		rig.Expect(t, c.Run(s, "echo ok"), 0, "ok\n", "")
	})
}

// C7: Writing to what asked for it works; to all else it is one typed error, however often.
func TestInputGoesOnlyToWhatAskedForIt(t *testing.T) {
	g := rig.Shared(t, "c")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		closed := func(how, method string, params object) {
			t.Helper()
			logged := g.Book.Len()
			for range 100 {
				if f := c.Try(method, params); f.Code() != "STDIN_CLOSED" {
					t.Fatalf("%s: %+v", how, f)
				}
			}
			if grown := g.Book.Len() - logged; grown > 2000 {
				t.Errorf("%s: the log grew by %d bytes", how, grown)
			}
		}
		stream := c.Stream(s, "read x; echo got $x", object{"interactive_stdin": true})
		c.Call("exec.input", object{"exec_id": stream.Str("exec_id"), "data": "word\n"})
		if data, exit := c.Output(stream.Str("stream_id"), 0); data != "got word\n" || exit.Num("exit_code") != 0 {
			t.Errorf("%q %v", data, exit)
		}
		closed("an ended command", "exec.input", object{"exec_id": stream.Str("exec_id"), "data": "x"})

		p := c.Call("process.start", object{"session_id": s, "command": "read x; echo got $x; read y; echo bye $y", "stdin": "open"}).Str("process_id")
		c.Call("process.input", object{"process_id": p, "data": "word\n"})
		if w := c.Call("process.wait", object{"process_id": p, "until": object{"output": "got word"}}); !w.Yes("met") {
			t.Errorf("%v", w)
		}
		c.Call("process.input", object{"process_id": p, "data": "now\n", "eof": true})
		if w := c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}}); w.Num("exit_code") != 0 {
			t.Errorf("%v", w)
		}
		closed("an ended process", "process.input", object{"process_id": p, "data": "x"})

		nap := rig.Sleeper()
		p = c.Call("process.start", object{"session_id": s, "command": nap}).Str("process_id")
		closed("a process without stdin", "process.input", object{"process_id": p, "data": "x"})
		p = c.Call("process.start", object{"session_id": s, "command": nap, "stdin": "open"}).Str("process_id")
		c.Call("process.input", object{"process_id": p, "eof": true})
		closed("after its EOF", "process.input", object{"process_id": p, "data": "x"})

		stream = c.Stream(s, nap)
		closed("a command without interactive stdin", "exec.input", object{"exec_id": stream.Str("exec_id"), "data": "x"})
		c.Call("exec.cancel", object{"exec_id": stream.Str("exec_id")})
		// The command closed its end itself: what is sent goes nowhere, and nothing breaks.
		stream = c.Stream(s, "exec 0<&-; "+nap, object{"interactive_stdin": true})
		for range 20 {
			if f := c.Try("exec.input", object{"exec_id": stream.Str("exec_id"), "data": "x"}); !f.OK && f.Code() != "STDIN_CLOSED" {
				t.Errorf("closed by the command: %+v", f)
			}
		}
		c.Call("exec.cancel", object{"exec_id": stream.Str("exec_id")})
		rig.Expect(t, c.Run(s, "echo ok"), 0, "ok\n", "")
		if f := c.Try("exec.input", object{"exec_id": "x-none", "data": "x"}); f.Code() != "EXEC_NOT_FOUND" {
			t.Errorf("unknown exec: %+v", f)
		}
		c.Call("session.destroy", object{"session_id": s, "force": true})
	})
}

// C10: Commands and processes have no terminal: nothing is echoed, no line end changed, no stream merged.
func TestCommandsAndProcessesHaveNoTerminal(t *testing.T) {
	g := rig.Shared(t, "c")
	const look = `for fd in 0 1 2; do if [ -t $fd ]; then echo "$fd is a terminal"; fi; done; ls -l /proc/self/fd | grep -c /dev/p[t]`
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, look), 1, "0\n", "")
		rig.Expect(t, c.Run(s, "echo a; echo b >&2"), 0, "a\n", "b\n")
		stream := c.Stream(s, look+"; cat", object{"interactive_stdin": true})
		c.Call("exec.input", object{"exec_id": stream.Str("exec_id"), "data": "one\ntwo\n", "eof": true})
		if data, _ := c.Output(stream.Str("stream_id"), 0); data != "0\none\ntwo\n" {
			t.Errorf("stream: %q", data)
		}
		p := c.Call("process.start", object{"session_id": s, "command": look + "; cat", "stdin": "open"}).Str("process_id")
		c.Call("process.input", object{"process_id": p, "data": "one\n", "eof": true})
		c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}})
		var data string
		for _, chunk := range c.Call("process.logs", object{"process_id": p}).Objs("chunks") {
			data += chunk.Text("data", "encoding")
		}
		if data != "0\none\n" {
			t.Errorf("process: %q", data)
		}
		rig.Expect(t, c.Run(s, "echo $TERM; stty size"), 1, "dumb\n", c.Run(s, "stty size").Stderr())
	})
}
