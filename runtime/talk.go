package runtime

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// An error that returns to the top level drops the rest of its line, and the report with it: what has not reported after
	// repeatAfter, though the line was read, is followed by one of its own that repeats the report. Most need none.
	repeatAfter = 5 * time.Millisecond
	// While a command runs, that line waits in the channel. A shell that has taken it too and has not reported will not
	// (`set -n` in dash). Looked at rarely, since commands that last are rarely this.
	firstDoubt, lastDoubt = 100 * time.Millisecond, 2 * time.Second
)

// talk is the part of a run between us and the shell: whether it has had the command's line, and why it has not reported.
type talk struct {
	line     []byte        // the command's, as long as the script channel has had no room for it
	sent     int           // bytes of the script channel that are this command's
	repeatAt time.Time     // when to add the line that repeats the report; zero: it is there, or line is not
	pause    time.Duration // before the next look whether it can be added
	unheard  bool          // that line found no reader: that none is left to read says nothing
	unsure   int           // how often to add it again: a stale abort takes a line with it

	asked    string    // the question what was reported last, of a run that was resumed
	answerBy time.Time // until then its answer may say that the command has not begun
	unbegun  bool      // the answer was something else: the line was never sent

	suspect   time.Time     // when to look whether the shell is wedged
	doubt     time.Duration // between those looks
	suspected bool          // it has taken every line and said nothing
	wedged    bool          // nor has it since: it was ended for that

	aborted bool // the shell's own work was, for a signal: something of that may be left when the command has ended
}

// deliver sends the line, or keeps it until there is room: of a channel that is short (see sendBy), lines before it may take
// all.
func (r *run) deliver(line []byte, now time.Time) error {
	switch err := r.p.write(line); err {
	case nil:
		r.line, r.repeatAt = nil, now.Add(repeatAfter)
	case unix.EAGAIN:
		if r.line == nil {
			r.line = slices.Clone(line)
		}
	case unix.EPIPE: // nobody reads the channel any more. Any other error shows by itself: the shell is silent
		return fmt.Errorf("script channel: %w", err)
	}
	return nil
}

// unread: the shell has not come to the line.
func (r *run) unread() bool {
	// Of a resumed run the channel may hold more than its own lines: each gateway before this one has asked.
	return r.line != nil || r.p.unread() >= r.sent && !r.took()
}

// took: the shell has the command for sure, of a run that was resumed; others know it by what they sent.
func (r *run) took() bool { return r.asked != "" && r.p.took() }

// mayNotHaveBegun: of a run that was resumed it is not known yet whether the shell was given the command. A shell that is idle says so
// at once; one that runs the command has read its text, which shows at once, too, where the kernel keeps such times.
func (r *run) mayNotHaveBegun(now time.Time) bool {
	return r.asked != "" && now.Before(r.answerBy) && !r.took()
}

// later is the later one of the two.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// repeat sends the line that repeats the report, once, and behind it the question of a run that was resumed. That asks alone
// as long as it is not known whether the command's line was ever sent: the other would report it even so.
func (r *run) repeat() {
	r.repeatAt = time.Time{}
	if r.asked != "" && !r.took() {
		r.ask()
		return
	}
	line := []byte(r.p.report(r.p.kind.again, r.seq))
	switch err := r.p.write(line); err {
	case nil:
		r.sent += len(line)
	case unix.EPIPE: // the command is `exec PROGRAM`
		r.unheard = true
	}
	if r.asked != "" {
		r.ask()
	}
}

// ask asks what was reported last. To hear it twice does no harm.
func (r *run) ask() { r.p.send(r.p.kind.last + " " + r.asked + r.p.kind.then + "\n") }

// remind adds the line that repeats the report, once it is due and the shell has taken all before it.
func (r *run) remind(now time.Time) {
	switch {
	case r.repeatAt.IsZero() || now.Before(r.repeatAt):
	case r.p.unread() == 0:
		r.repeat()
	default:
		r.pause = min(max(2*r.pause, repeatAfter), lastDoubt)
		r.repeatAt = now.Add(r.pause)
	}
}

// mistrust looks whether the shell is wedged: one that has taken every line, sleeps and still says nothing is ended.
func (r *run) mistrust(now time.Time) {
	r.doubt = min(2*r.doubt, lastDoubt)
	r.suspect = now.Add(r.doubt)
	if r.asked != "" && r.p.unread() == 0 { // it has taken the question, and nothing came of that
		r.repeat()
	}
	if r.line != nil || !r.repeatAt.IsZero() || r.unheard || r.p.unread() > 0 || r.p.flood.pauses() { // its report may be behind a flood
		return
	}
	if r.unsure > 0 {
		r.unsure--
		r.repeat()
		return
	}
	if st, _ := readProc(r.p.child.Pid()); st.state != 'S' { // one that is throttled or stopped may say it yet
		return
	}
	if r.reports(); r.reported {
		return
	}
	if !r.suspected {
		r.suspected, r.suspect = true, now.Add(firstDoubt) // once more: its report may be on the way
		return
	}
	r.wedged = true
	_ = r.p.child.Signal(syscall.SIGKILL)
}

// lonely is the pause between looks for the reader of stdin: a shell is at its line within some 100 µs, but for one that is
// stopped.
func (r *run) lonely() time.Duration {
	return min(max(time.Since(r.began)/4, 20*time.Microsecond), 50*time.Millisecond)
}

// reports hears what the shell has said, and its own report last.
func (r *run) reports() {
	for {
		m, ok := r.p.next()
		if !ok {
			return
		}
		if m.verb == 'e' && m.seq == r.seq || m.verb == 'g' && m.seq == r.asked && m.last == r.seq {
			r.reported, r.code = true, m.val
			r.c.reported.Store(true)
			return
		}
		if m.verb == 'g' && m.seq == r.asked {
			if r.took() { // what it has not reported yet, it may still run, or an error took the report along
				r.repeatAt = time.Now()
			} else {
				r.unbegun = true
			}
		}
	}
}
