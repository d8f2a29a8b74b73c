package control

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// chunk is how much is read from a control pipe at once.
const chunk = 512

// reader is a Parser that keeps the reports that it found.
type reader struct {
	Parser
	reports []Report
}

// read gives the parser text that has arrived at once.
func (r *reader) read(text string) {
	for len(text) > 0 {
		n := min(chunk, len(text))
		r.Add([]byte(text[:n]))
		text = text[n:]
		for {
			m, ok := r.Next()
			if !ok {
				break
			}
			r.reports = append(r.reports, m)
		}
	}
}

// found is everything that a parser found.
type found struct {
	reports           []Report
	exit, stateStatus *int
	exitIsWhole       bool
}

func (r *reader) found() found { return found{r.reports, r.Exit, r.StateStatus, r.ExitIsWhole} }

// A report is found whatever pieces it arrives in, and whatever else a session writes into its control pipe.
func TestReports(t *testing.T) {
	ended := func(seq string, val int) Report { return Report{Verb: 'e', Seq: seq, Val: val} }
	long := strings.Repeat("y", 3*maxReport)
	for _, c := range []struct {
		name, text string
		want       found
	}{
		{"end", "e 7 0\n", found{reports: []Report{ended("7", 0)}}},
		{"status", "e 7 130\n", found{reports: []Report{ended("7", 130)}}},
		{"status above 255", "e 7 300\n", found{reports: []Report{ended("7", 44)}}},
		{"negative status", "e 7 -1\n", found{reports: []Report{ended("7", 255)}}},
		{"copy", "j 8 70000\n", found{reports: []Report{{Verb: 'j', Seq: "8", Val: 70000}}}},
		{"last report", "g 9 7 2\n", found{reports: []Report{{Verb: 'g', Seq: "9", Last: "7", Val: 2}}}},
		{"no last report", "g 9 \n", found{}},
		{"state was read", "s 1 0\n", found{stateStatus: new(0)}},
		{"directory is gone", "s 1 1\n", found{stateStatus: new(1)}},
		{"exit", "x 3 0\n", found{exit: new(3), exitIsWhole: true}},
		{"exit in a function", "x 3 1\n", found{exit: new(3)}},
		{"last exit counts", "x 3 0\nx 4 1\n", found{exit: new(4)}},
		{"several", "j 8 42\ne 7 1\ns 1 0\nx 0 0\ng 9 7 1\n", found{
			reports: []Report{{Verb: 'j', Seq: "8", Val: 42}, ended("7", 1), {Verb: 'g', Seq: "9", Last: "7", Val: 1}},
			exit:    new(0), exitIsWhole: true, stateStatus: new(0)}},
		{"incomplete", "e 7 0", found{}},
		{"too few words", "e\ne 7\ng 9\nx 1\ns 1\nj 8\n", found{}},
		{"blanks", "\n \n\t\n e  7\t1 \n", found{reports: []Report{ended("7", 1)}}},
		{"unknown", "E 7 0\n? 7 0\nq 7 0\n\xff 7 0\n", found{}},
		{"NUL", "\x00\n\x00 7 0\n\x00e 7 0\ne 7 3\n", found{reports: []Report{ended("7", 3)}}},
		{"NUL in the tag", "e 7\x00 0\n", found{reports: []Report{ended("7\x00", 0)}}}, // the tag of no command
		{"not UTF-8", "\xff\xfe\xc0 \xc3\x28\ne 7 3\n", found{reports: []Report{ended("7", 3)}}},
		{"carriage return", "e 7 3\r\n", found{reports: []Report{ended("7", 3)}}},
		{"oversize", long + "\ne 7 3\n", found{reports: []Report{ended("7", 3)}}},
		{"oversize without an end", long, found{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			check := func(how string, pieces ...string) {
				t.Helper()
				var r reader
				for _, piece := range pieces {
					r.read(piece)
				}
				if got := r.found(); !reflect.DeepEqual(got, c.want) {
					t.Errorf("%s: %+v, want %+v", how, got, c.want)
				}
				if len(r.lines) > maxReport+chunk {
					t.Errorf("%s: %d bytes are kept", how, len(r.lines))
				}
			}
			check("whole", c.text)
			check("byte by byte", strings.Split(c.text, "")...)
			if len(c.text) > maxReport { // each byte of the report, which is at the end
				for i := range 8 {
					check(fmt.Sprint("split ", i, " before the end"), c.text[:len(c.text)-i], c.text[len(c.text)-i:])
				}
				return
			}
			for i := range c.text {
				check(fmt.Sprint("split at ", i), c.text[:i], c.text[i:])
			}
		})
	}
}

// While a session floods its control pipe, the reports between its lines arrive whole and in order, and the pipe is read at the limited
// rate.
func TestReportsInAFlood(t *testing.T) {
	var text strings.Builder
	var want []Report
	for i := range 40 {
		text.Write(bytes.Repeat([]byte("y\n"), 5<<10))
		fmt.Fprintf(&text, "e %d %d\n", i, i)
		want = append(want, Report{Verb: 'e', Seq: fmt.Sprint(i), Val: i})
	}
	var r reader
	begin := time.Now()
	for rest := text.String(); rest != ""; {
		if r.Flood.Pauses() {
			time.Sleep(r.Flood.Left())
			continue
		}
		n := min(chunk, len(rest))
		r.read(rest[:n])
		rest = rest[n:]
	}
	took := time.Since(begin)
	if !reflect.DeepEqual(r.reports, want) {
		t.Errorf("%+v, want %+v", r.reports, want)
	}
	if n, most := text.Len(), floodBytes*int(took/floodTime+2); n > most {
		t.Errorf("%d bytes were read in %v, at most %d may be", n, took, most)
	}
}

// FuzzReports: whatever a session writes into its control pipe, in whatever pieces, the next report arrives.
func FuzzReports(f *testing.F) {
	for _, text := range []string{"", "e 7 0\n", "g 9 \nx 3", "\x00\xff j 8 99999999999999999999\n", strings.Repeat("y ", maxReport)} {
		f.Add([]byte(text), uint16(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint16) {
		var r reader
		for piece := max(1, int(size)%maxReport); len(text) > 0; text = text[min(piece, len(text)):] {
			r.read(string(text[:min(piece, len(text))]))
			if len(r.lines) > maxReport+chunk {
				t.Fatalf("%d bytes are kept", len(r.lines))
			}
		}
		r.read("\ne last 3\n")
		if want := (Report{Verb: 'e', Seq: "last", Val: 3}); len(r.reports) == 0 || r.reports[len(r.reports)-1] != want {
			t.Fatalf("%+v, want %+v as the last", r.reports, want)
		}
	})
}
