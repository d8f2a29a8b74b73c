package rig

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"trl/internal/testkit"
)

// Terminal is a terminal as one client sees it.
type Terminal struct {
	C      *Client
	pid    int // of its first process; 0 for an attached client
	Id     string
	Stream string
	Text   string // output so far; a snapshot starts it again
	Next   int    // offset after Text
	Shots  int    // number of snapshots
}

// Attach attaches another client.
func (h *Terminal) Attach(c *Client, more ...Object) *Terminal {
	c.T.Helper()
	d := c.Call("term.attach", With(Object{"term_id": h.Id}, With(more...)))
	return &Terminal{C: c, Id: h.Id, Stream: h.Stream, Next: d.Num("offset")}
}

func (h *Terminal) Ask(method string, more ...Object) Object {
	h.C.T.Helper()
	return h.C.Call(method, With(Object{"term_id": h.Id}, With(more...)))
}

func (h *Terminal) Keys(text string) { h.C.T.Helper(); h.Ask("term.input", Object{"data": text}) }

// NextOutput waits for the next piece of output, or for the exit, which it returns.
func (h *Terminal) NextOutput() (exit Object) {
	h.C.T.Helper()
	f := h.C.Await("output of the terminal, after "+Brief(h.Text), func(f *Frame) bool {
		return f.Data.Str("term_id") == h.Id && (f.Event == "term.output" || f.Event == "term.exit") || f.Event == "stream.gap" && f.Data.Str("stream_id") == h.Stream
	})
	switch f.Event {
	case "term.exit":
		return f.Data
	case "stream.gap":
		if from := f.Data.Num("from"); from != h.Next {
			h.C.T.Fatalf("gap from %d, want %d", from, h.Next)
		}
		h.Next = f.Data.Num("to")
		return nil
	}
	data := f.Data.Text("data", "encoding")
	if f.Data.Yes("snapshot") {
		if !f.Data.Yes("replay") {
			h.C.T.Errorf("a snapshot is no replay")
		}
		h.Shots++
		h.Text, h.Next = data, f.Data.Num("offset")
		return nil
	}
	if at := f.Data.Num("offset"); at != h.Next {
		h.C.T.Fatalf("output at %d, want %d", at, h.Next)
	}
	if f.Data.Str("stream") != "tty" {
		h.C.T.Errorf("output on %q", f.Data.Str("stream"))
	}
	h.Text += data
	h.Next += len(data)
	return nil
}

// Expect waits until the output matches, and returns the match with its groups. It removes the text up to the end of the match.
func (h *Terminal) Expect(pattern string) []string {
	h.C.T.Helper()
	re := regexp.MustCompile(pattern)
	for {
		if at := re.FindStringSubmatchIndex(h.Text); at != nil {
			m := re.FindStringSubmatch(h.Text)
			h.Text = h.Text[at[1]:]
			return m
		}
		if exit := h.NextOutput(); exit != nil {
			h.C.T.Fatalf("%s: terminal ended: %v after %s", pattern, exit, Brief(h.Text))
		}
	}
}

// End waits for the exit, and returns it with the remaining output before it.
func (h *Terminal) End() (text string, exit Object) {
	h.C.T.Helper()
	for exit == nil {
		exit = h.NextOutput()
	}
	return h.Text, exit
}

// Screen polls the text of the screen until it matches.
func (h *Terminal) Screen(pattern string) Object {
	h.C.T.Helper()
	re := regexp.MustCompile(pattern)
	var s Object
	last := ""
	defer func() {
		if h.C.T.Failed() {
			h.C.T.Logf("the screen is\n%s", last)
		}
	}()
	testkit.Eventually(h.C.T, "screen with "+pattern, func() bool {
		s = h.Ask("term.snapshot")
		last = ""
		for _, l := range s["lines"].([]any) {
			last += l.(string) + "\n"
		}
		return re.MatchString(last)
	})
	return s
}

// TypeSecret types at a prompt that does not echo, and leaves it with Ctrl-C.
func (h *Terminal) TypeSecret() {
	h.C.T.Helper()
	// A program that asks with readpassphrase (ssh) forgets a signal that comes between its prompt and its read.
	testkit.Eventually(h.C.T, "who asked waits for the answer", func() bool {
		f := StatFields(h.pid)
		if f == nil {
			return false
		}
		front, _ := strconv.Atoi(f[5])
		state, _, _, _ := ProcStat(front)
		return front != h.pid && state == 'S'
	})
	h.Keys("nobody-sees-this")
	h.Keys("\x03")
	h.Expect(`shell> `)
	if shown := h.Screen("(?m)^shell> *$"); strings.Contains(fmt.Sprint(shown["lines"]), "nobody-sees-this") {
		h.C.T.Errorf("the password is shown: %v", shown["lines"])
	}
	h.Keys("echo visible''again\r")
	h.Expect(`echo visible''again\r\n`) // the echo is back
	h.Expect(`visibleagain`)
}

// OpenTerminal opens a terminal, by default 80 by 24.
func (c *Client) OpenTerminal(session string, more ...Object) *Terminal {
	c.T.Helper()
	d := c.Call("term.open", With(Object{"session_id": session, "cols": 80, "rows": 24}, With(more...)))
	return &Terminal{C: c, pid: d.Num("pid"), Id: d.Str("term_id"), Stream: d.Str("stream_id")}
}
