// Package control parses the reports that a shell writes into its control pipe, and limits how fast they are read. Any process of the
// session can write into that pipe, too.
package control

import (
	"bytes"
	"strconv"
	"time"
)

// A Report is one message of a shell.
type Report struct {
	Verb byte   // 'e': a command ended; 'j': a copy was started; 'g': answer to the question what was reported last
	Seq  string // tag of the command or copy; for 'g' tag of the question
	Val  int    // the exit status, or the copy's pid
	Last string // for 'g': tag of the command that was reported last
}

// A Parser is given what was read from one shell's control pipe.
type Parser struct {
	Flood       Flood // limits how fast the pipe is read
	Exit        *int  // the status that the EXIT trap reported; nil before
	ExitIsWhole bool  // the EXIT trap ran outside of functions, so its snapshot is the shell's last state
	StateStatus *int  // what the state's script reported at its end: 0, or 1 if it could not enter the directory; nil: no report

	lines []byte // what Next has not returned
}

// maxReport is more than any report of the boot text.
const maxReport = 4 << 10

// Add adds what was read.
func (p *Parser) Add(b []byte) {
	p.Flood.count(len(b))
	if len(p.lines) == 0 {
		p.lines = p.lines[:0:0]
	}
	if len(p.lines) > maxReport { // not a report of a shell's boot text
		p.lines = p.lines[:0]
	}
	p.lines = append(p.lines, b...)
}

// Next returns the next whole report, and false if there is none. It skips lines that are no reports, and notes those about the
// shell's state and exit.
func (p *Parser) Next() (Report, bool) {
	for {
		i := bytes.IndexByte(p.lines, '\n')
		if i < 0 {
			return Report{}, false
		}
		f := bytes.Fields(p.lines[:i])
		p.lines = p.lines[i+1:]
		if len(f) < 3 {
			continue
		}
		switch f[0][0] {
		case 'e', 'j':
			v, _ := strconv.Atoi(string(f[2]))
			if f[0][0] == 'e' {
				v &= 0xff // dash and zsh have more in $? after `return 300`
			}
			return Report{Verb: f[0][0], Seq: string(f[1]), Val: v}, true
		case 'g':
			v, _ := strconv.Atoi(string(f[len(f)-1]))
			return Report{Verb: 'g', Seq: string(f[1]), Last: string(f[2]), Val: v & 0xff}, true
		case 's':
			v, _ := strconv.Atoi(string(f[2]))
			p.StateStatus = &v
		case 'x':
			code, _ := strconv.Atoi(string(f[1]))
			p.Exit, p.ExitIsWhole = &code, string(f[2]) == "0"
		}
	}
}

// A Flood limits how fast a control pipe is read, because the session's processes can write to it as fast as they like. A report has
// some 20 bytes. After floodBytes within floodTime nothing is read until that time is over; the pipe gets full, and writers wait.
type Flood struct {
	heard int       // bytes that were read since began
	began time.Time // begin of the present floodTime; zero before the first
	Until time.Time // nothing is read before it; zero: no flood
}

const (
	floodBytes = 64 << 10
	floodTime  = 100 * time.Millisecond
)

func (f *Flood) count(n int) {
	if f.heard += n; f.heard < floodBytes {
		return
	}
	now := time.Now()
	if end := f.began.Add(floodTime); now.Before(end) {
		f.Until, f.began = end, end
	} else {
		f.began = now
	}
	f.heard = 0
}

// Pauses tells whether the pipe must not be read now.
func (f *Flood) Pauses() bool {
	if f.Until.IsZero() {
		return false
	}
	if time.Now().Before(f.Until) {
		return true
	}
	f.Until = time.Time{}
	return false
}

// Left returns how long the pause still lasts.
func (f *Flood) Left() time.Duration { return max(0, time.Until(f.Until)) }
