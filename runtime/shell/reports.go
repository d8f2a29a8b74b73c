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
	// An error that returns to the top level makes the shell drop the rest of the line, with the report. If the shell has read the
	// line but not reported after resendAfter, we send a second line that repeats the report. Most commands need none.
	resendAfter = 5 * time.Millisecond
	// While a command runs, the second line waits in the channel. A shell that has read it and has still not reported is wedged
	// (`set -n` in dash). The check is rare, because few long commands are wedged.
	firstWedgeInterval, lastWedgeInterval = 100 * time.Millisecond, 2 * time.Second
)

// reports is the part of a run that tracks the shell: whether it has read the command's line, and why it has not reported.
type reports struct {
	line              []byte        // the command's line while the script channel has no room for it
	sent              int           // bytes that were sent for this command
	resendAt          time.Time     // when to send the line that repeats the report; zero: it was sent, or line was not
	resendPause       time.Duration // until the next check whether that line can be sent
	resendHadNoReader bool          // that line got EPIPE, so an empty channel does not prove that the shell has read everything
	resendsLeft       int           // how often to send that line again, because a late abort signal makes the shell drop a line

	question  string    // tag of the question what the shell reported last; "" unless the run was resumed
	answerBy  time.Time // until then the answer may show that the command has not begun
	neverSent bool      // the answer named another command, so this command's line was never sent

	wedgeCheckAt  time.Time     // when to check whether the shell is wedged
	wedgeInterval time.Duration // between those checks
	maybeWedged   bool          // the last check found that the shell had read every line and not reported
	wedged        bool          // a second check found the same, and the shell was killed

	aborted bool // the shell got an abort signal or INT on a client's request, which may still hit it after the command's end
}

// sendLine sends the line, or keeps it until there is room. Earlier lines may fill a channel with few slots (see sendBy).
func (r *run) sendLine(line []byte, now time.Time) error {
	switch err := r.p.write(line); err {
	case nil:
		r.line, r.resendAt = nil, now.Add(resendAfter)
	case unix.EAGAIN:
		if r.line == nil {
			r.line = slices.Clone(line)
		}
	case unix.EPIPE: // nobody reads the channel any more. After any other error the shell does not report, and checkWedged finds that
		return fmt.Errorf("script channel: %w", err)
	}
	return nil
}

// unread tells whether the shell has not read the command's line yet.
func (r *run) unread() bool {
	// In a resumed run the channel may also hold questions of earlier gateways, so more than sent bytes may be unread.
	return r.line != nil || r.p.unread() >= r.sent && !r.hasCommand()
}

// hasCommand tells whether the shell of a resumed run is known to have read the command's text. It is false in other runs, which
// know from sent what the shell has read.
func (r *run) hasCommand() bool { return r.question != "" && r.p.hasReadText() }

// mayNotHaveBegun tells whether it is still unknown if the shell got a resumed command. An idle shell answers the question at once.
// A shell that runs the command has read its text, and the text's access time shows that at once, if the kernel keeps such times.
func (r *run) mayNotHaveBegun(now time.Time) bool {
	return r.question != "" && now.Before(r.answerBy) && !r.hasCommand()
}

// later returns the later of the two.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// resend sends the line that repeats the report. In a resumed run it sends the question after it. While it is unknown whether the
// command's line was ever sent, it sends only the question, because the other line would report the command in any case.
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

// askLast asks the shell what it reported last. A second answer does no harm.
func (r *run) askLast() {
	r.p.send(fmt.Sprintf(r.p.dialect.LastReport+"\n", r.question))
}

// resendIfDue calls resend when that is due and the shell has read all earlier lines.
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

// checkWedged kills the shell if it is wedged: it has read every line, sleeps, and has not reported in two checks.
func (r *run) checkWedged(now time.Time) {
	r.wedgeInterval = min(2*r.wedgeInterval, lastWedgeInterval)
	r.wedgeCheckAt = now.Add(r.wedgeInterval)
	if r.question != "" && r.p.unread() == 0 { // the shell has read the question but not answered
		r.resend()
	}
	if r.line != nil || !r.resendAt.IsZero() || r.resendHadNoReader || r.p.unread() > 0 || r.p.control.Flood.Pauses() { // in a pause for a flood its report may still be unread
		return
	}
	if r.resendsLeft > 0 {
		r.resendsLeft--
		r.resend()
		return
	}
	if st, _ := procfs.Read(r.p.child.Pid()); st.State != 'S' { // a shell that runs, is throttled or is stopped may still report
		return
	}
	if r.readReports(); r.reported {
		return
	}
	if !r.maybeWedged {
		r.maybeWedged, r.wedgeCheckAt = true, now.Add(firstWedgeInterval) // the second check comes later, because the report may be on its way
		return
	}
	r.wedged = true
	_ = r.p.child.Signal(syscall.SIGKILL)
}

// stdinReaderPause is the pause between checks whether stdin has a reader. A shell reads its line within some 100 µs, unless it is
// stopped.
func (r *run) stdinReaderPause() time.Duration {
	return min(max(time.Since(r.began)/4, 20*time.Microsecond), 50*time.Millisecond)
}

// readReports reads the reports that have come, up to the report of this command.
func (r *run) readReports() {
	for {
		m, ok := r.p.next()
		if !ok {
			return
		}
		if m.Verb == 'e' && m.Seq == r.seq || m.Verb == 'g' && m.Seq == r.question && m.Last == r.seq {
			r.reported, r.code = true, m.Val
			r.c.reported.Store(true)
			return
		}
		if m.Verb == 'g' && m.Seq == r.question {
			if r.hasCommand() { // the command may still run, or an error dropped its report
				r.resendAt = time.Now()
			} else {
				r.neverSent = true
			}
		}
	}
}
