package audit

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// A Report is the result of Verify.
type Report struct {
	Lines       int
	First, Last uint64 // numbers of the first and the last line
	Head        string // NUMBER:HASH of the last line
	Lost        uint64 // how many entries are missing according to the log itself
	Torn        int    // how often the log went on after a crash in the middle of a line
	Cut         int    // bytes after the last complete line: from a crash, or a change
}

// A Fault is the first line that is not as it was written.
type Fault struct {
	File string
	Line int // the number of the line in its file, from 1
	Why  string
}

func (f *Fault) Error() string { return fmt.Sprintf("%s: line %d: %s", f.File, f.Line, f.Why) }

// Verify reads a chain from its first line to its last, through the files in the order of their lines. anchors are heads that were noted earlier
// (NUMBER:HASH), whose lines must be there. A *Fault names the first line that is wrong.
//
// A chain alone cannot show that lines are missing at its end, or that somebody who may write the file has written all lines from some line on anew.
// The anchors show both.
func Verify(paths []string, anchors ...string) (Report, error) {
	var r Report
	paths, err := ordered(paths)
	if err != nil {
		return r, err
	}
	wanted := map[uint64]string{}
	for _, a := range anchors {
		number, hash, ok := strings.Cut(a, ":")
		seq, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil || len(hash) != hashLen {
			return r, fmt.Errorf("%q is no head: NUMBER:HASH wanted", a)
		}
		wanted[seq] = hash
	}
	v := verifier{report: &r, wanted: wanted}
	for _, p := range paths {
		if err := v.file(p); err != nil {
			return r, err
		}
	}
	for seq := range wanted {
		if seq > r.Last {
			return r, &Fault{v.path, v.line, fmt.Sprintf("the end was cut off: line number %d was there, the last one now is %d", seq, r.Last)}
		}
		if seq < r.First {
			return r, fmt.Errorf("line number %d is older than what is left of the log", seq)
		}
	}
	return r, nil
}

type verifier struct {
	report *Report
	wanted map[uint64]string
	path   string
	line   int
	head   chainHead
	torn   []byte // bytes since the last complete line that are no line
	at     int    // the line where they begin
	why    string // what is wrong with it
}

func (v *verifier) fault(line int, why string, args ...any) error {
	return &Fault{v.path, line, fmt.Sprintf(why, args...)}
}

func (v *verifier) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if v.torn != nil {
		return v.fault(v.at, "%s", v.why)
	}
	v.path, v.line = path, 0
	r := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			v.line++
			if e := v.verifyLine(line); e != nil {
				return e
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if v.torn == nil {
		return nil
	}
	if bytes.IndexByte(v.torn, '\n') < 0 { // one incomplete line at the end, as a crash leaves it
		v.report.Cut = len(v.torn)
		v.torn = nil
		return nil
	}
	return v.fault(v.at, "%s", v.why)
}

// verifyLine checks one line, with its newline if it has one.
func (v *verifier) verifyLine(line []byte) error {
	whole, ended := bytes.CutSuffix(line, []byte("\n"))
	e, h, prev, err := readLine(whole)
	if err != nil || !ended {
		if v.torn == nil {
			v.at, v.why = v.line, "cut off"
			if err != nil {
				v.why = err.Error()
			}
		}
		v.torn = append(v.torn, line...)
		return nil
	}
	r := v.report
	if v.torn != nil {
		// The newline that ends the incomplete line may come from the writer that went on.
		fits := e.Action == ActionTorn && (e.TornHash == hashOf(v.torn) || e.TornHash == hashOf(v.torn[:len(v.torn)-1]))
		if !fits || prev != v.head.hash {
			return v.fault(v.at, "%s", v.why)
		}
		v.torn = nil
		r.Torn++
	}
	switch {
	case r.Lines == 0:
		r.First = e.Seq
		if e.Seq == 1 && prev != "" {
			return v.fault(v.line, "the first line is bound to one before it")
		}
	case e.Seq > v.head.seq+1:
		return v.fault(v.line, "removed before it: lines number %d to %d", v.head.seq+1, e.Seq-1)
	case e.Seq <= v.head.seq:
		return v.fault(v.line, "out of order: number %d after %d", e.Seq, v.head.seq)
	case prev != v.head.hash:
		return v.fault(v.line, "not bound to the line before it: that one was replaced")
	}
	if hash, ok := v.wanted[e.Seq]; ok && hash != h.hash {
		return v.fault(v.line, "number %d is not the line that was there: the log was written anew", e.Seq)
	}
	v.head = h
	r.Lines++
	r.Last, r.Head = h.seq, h.String()
	r.Lost += e.Lost
	return nil
}
