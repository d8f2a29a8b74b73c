package shell

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/procfs"
)

const (
	// An error that returns to the top level drops the rest of its line, and the report with it: what has not reported after
	// resendAfter, though the line was read, is followed by one of its own that repeats the report. Most need none.
	resendAfter = 5 * time.Millisecond
	// While a command runs, that line waits in the channel. A shell that has taken it too and has not reported will not
	// (`set -n` in dash). Looked at rarely, since commands that last are rarely this.
	firstWedgeInterval, lastWedgeInterval = 100 * time.Millisecond, 2 * time.Second
)

// reports is the part of a run between us and the shell: whether it has had the command's line, and why it has not reported.
type reports struct {
	line              []byte        // the command's, as long as the script channel has had no room for it
	sent              int           // bytes of the script channel that are this command's
	resendAt          time.Time     // when to add the line that repeats the report; zero: it is there, or line is not
	resendPause       time.Duration // before the next look whether it can be added
	resendHadNoReader bool          // that line found no reader: that none is left to read says nothing
	resendsLeft       int           // how often to add it again: a stale abort takes a line with it

	question  string    // the question what was reported last, of a run that was resumed
	answerBy  time.Time // until then its answer may say that the command has not begun
	neverSent bool      // the answer was something else: the line was never sent

	wedgeCheckAt  time.Time     // when to look whether the shell is wedged
	wedgeInterval time.Duration // between those looks
	maybeWedged   bool          // it has taken every line and said nothing
	wedged        bool          // nor has it since: it was ended for that

	aborted bool // the shell's own work was, for a signal: something of that may be left when the command has ended
}

// sendLine sends the line, or keeps it until there is room: of a channel that is short (see sendBy), lines before it may take
// all.
func (r *run) sendLine(line []byte, now time.Time) error {
	switch err := r.p.write(line); err {
	case nil:
		r.line, r.resendAt = nil, now.Add(resendAfter)
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
	return r.line != nil || r.p.unread() >= r.sent && !r.hasCommand()
}

// hasCommand: the shell has the command for sure, of a run that was resumed; others know it by what they sent.
func (r *run) hasCommand() bool { return r.question != "" && r.p.hasReadText() }

// mayNotHaveBegun: of a run that was resumed it is not known yet whether the shell was given the command. A shell that is idle says so
// at once; one that runs the command has read its text, which shows at once, too, where the kernel keeps such times.
func (r *run) mayNotHaveBegun(now time.Time) bool {
	return r.question != "" && now.Before(r.answerBy) && !r.hasCommand()
}

// later is the later one of the two.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// resend sends the line that repeats the report, once, and behind it the question of a run that was resumed. That asks alone
// as long as it is not known whether the command's line was ever sent: the other would report it even so.
func (r *run) resend() {
	r.resendAt = time.Time{}
	if r.question != "" && !r.hasCommand() {
		r.askLast()
		return
	}
	line := []byte(r.p.report(r.p.dialect.ResendCall, r.seq))
	switch err := r.p.write(line); err {
	case nil:
		r.sent += len(line)
	case unix.EPIPE: // the command is `exec PROGRAM`
		r.resendHadNoReader = true
	}
	if r.question != "" {
		r.askLast()
	}
}

// askLast asks what was reported last. To hear it twice does no harm.
func (r *run) askLast() {
	r.p.send(r.p.dialect.LastReportCall + " " + r.question + r.p.dialect.KeepStatus + "\n")
}

// resendIfDue adds the line that repeats the report, once it is due and the shell has taken all before it.
func (r *run) resendIfDue(now time.Time) {
	switch {
	case r.resendAt.IsZero() || now.Before(r.resendAt):
	case r.p.unread() == 0:
		r.resend()
	default:
		r.resendPause = min(max(2*r.resendPause, resendAfter), lastWedgeInterval)
		r.resendAt = now.Add(r.resendPause)
	}
}

// checkWedged looks whether the shell is wedged: one that has taken every line, sleeps and still says nothing is ended.
func (r *run) checkWedged(now time.Time) {
	r.wedgeInterval = min(2*r.wedgeInterval, lastWedgeInterval)
	r.wedgeCheckAt = now.Add(r.wedgeInterval)
	if r.question != "" && r.p.unread() == 0 { // it has taken the question, and nothing came of that
		r.resend()
	}
	if r.line != nil || !r.resendAt.IsZero() || r.resendHadNoReader || r.p.unread() > 0 || r.p.flood.pauses() { // its report may be behind a flood
		return
	}
	if r.resendsLeft > 0 {
		r.resendsLeft--
		r.resend()
		return
	}
	if st, _ := procfs.Read(r.p.child.Pid()); st.State != 'S' { // one that is throttled or stopped may say it yet
		return
	}
	if r.readReports(); r.reported {
		return
	}
	if !r.maybeWedged {
		r.maybeWedged, r.wedgeCheckAt = true, now.Add(firstWedgeInterval) // once more: its report may be on the way
		return
	}
	r.wedged = true
	_ = r.p.child.Signal(syscall.SIGKILL)
}

// stdinReaderPause is the pause between looks for the reader of stdin: a shell is at its line within some 100 µs, but for one that is
// stopped.
func (r *run) stdinReaderPause() time.Duration {
	return min(max(time.Since(r.began)/4, 20*time.Microsecond), 50*time.Millisecond)
}

// readReports hears what the shell has said, and its own report last.
func (r *run) readReports() {
	for {
		m, ok := r.p.next()
		if !ok {
			return
		}
		if m.verb == 'e' && m.seq == r.seq || m.verb == 'g' && m.seq == r.question && m.last == r.seq {
			r.reported, r.code = true, m.val
			r.c.reported.Store(true)
			return
		}
		if m.verb == 'g' && m.seq == r.question {
			if r.hasCommand() { // what it has not reported yet, it may still run, or an error took the report along
				r.resendAt = time.Now()
			} else {
				r.neverSent = true
			}
		}
	}
}
