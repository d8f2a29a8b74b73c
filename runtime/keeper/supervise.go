package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A supervision is the keeper's life: one gateway after the other, until it is over. supervise waits; each event has a
// method, which says what comes of it. All is owned by supervise.
type supervision struct {
	*keeper
	code  int  // the last gateway's
	ready bool // there was one that served

	stopping     bool           // we were told to end
	wantedSignal syscall.Signal // by whom, for a gateway that can end the sessions in order; 0: nobody, or passed on
	draining     bool           // stopping, but the sessions have time
	drained      bool           // and have had it
	killed       bool           // as somebody wished who would not wait

	ctxDone         <-chan struct{}  // to end, by the context; nil once we were
	wantedDeadline  <-chan time.Time // the wish has waited long enough for somebody who can fulfil it
	deadline        <-chan time.Time // the gateway has had its time to end
	restartDue      <-chan time.Time // the next start is due
	upgradeDeadline <-chan time.Time // an upgrade's gateway has had its time to take over
	dyingChecks     int              // looks in a row at a gateway that had been killed and had not ended
	unfreezeHost    func()           // lets the sessions go on; nil: nobody has paused them
	replaceDue      <-chan time.Time // our own succession is due
	replaceUntil    time.Time        // and has failed afterwards
}

func (k *keeper) supervise(ctx context.Context) (code int, err error) {
	s := &supervision{keeper: k, ctxDone: ctx.Done()}
	var alive <-chan time.Time
	if k.c.Watchdog > 0 {
		pulse := time.NewTicker(k.c.Watchdog)
		defer pulse.Stop()
		alive = pulse.C
	}
	look := time.NewTicker(dyingCheckInterval)
	defer look.Stop()
	for {
		s.passSignal()
		var exited, served, serves, failed <-chan struct{}
		if g := s.gateway; g != nil {
			exited = g.child.Exited()
			if s.deadline == nil {
				served = g.served
			}
			if s.next == nil && (s.upgrading() || !g.serving()) {
				serves = g.ready
			}
		} else if s.stopping && s.wantedSignal == 0 {
			return s.code, nil
		}
		if s.next != nil {
			failed = s.next.child.Exited()
		}
		select {
		case sig := <-s.signals.accepted:
			s.signalled(sig)
		case <-s.ctxDone:
			s.stop(unix.SIGTERM)
		case <-alive:
			s.notify("WATCHDOG=1")
		case <-look.C:
			s.checkDying()
		case <-s.wantedDeadline:
			s.wantedDeadline, s.wantedSignal = nil, 0
			if s.gateway != nil {
				s.signal(unix.SIGKILL)
			}
		case <-served: // it has lost us, or broken the rules
			s.deadline = time.After(connectionEndTimeout)
		case <-s.deadline:
			s.deadline = nil
			s.c.Log.Error().Int("gateway", s.gateway.child.Pid()).Msg("gateway did not end, killed")
			s.signal(unix.SIGKILL)
		case <-s.restartDue:
			if err := s.start(); err != nil { // as bad as one that died at once, and perhaps as temporary
				s.c.Log.Error().Err(err).Msg("gateway does not start")
				s.restartDue = time.After(s.crashed())
			}
		case <-serves:
			if s.upgrading() {
				s.tookOver()
			}
		case <-s.replaceDue:
			s.replace()
		case <-failed: // before it took over: nothing has happened
			s.unfreeze()
			s.upgradeDeadline = nil
			err := s.discardGateway(s.next, s.next.child.Status().Code)
			s.next = nil
			s.revert()
			s.upgraded(err)
		case <-s.upgradeDeadline: // whoever of the two it is that hangs
			s.upgradeDeadline = nil
			s.c.Log.Error().Msg("new gateway has not taken over in time, killed")
			if s.next != nil {
				_ = s.next.child.Signal(unix.SIGKILL)
			} else if s.gateway != nil {
				s.signal(unix.SIGKILL)
			}
		case <-exited:
			if over, err := s.gatewayExited(); over {
				return s.code, err
			}
		}
	}
}

const (
	// A gateway that is killed or exits is gone in milliseconds. One that is still there at the second look in a row is held up
	// by a session; see checkDying.
	dyingCheckInterval = time.Second
	// maxFrozenChecks is for how many looks the sessions wait for its end, at most.
	maxFrozenChecks = 5
)

// checkDying helps a gateway to its end that has begun to exit and cannot: a thread of it is in a call on a pipe, whose lock a
// process has for as long as that waits for something else (see journal's splice). A pause makes every such process let go. A
// thread that waits for a file system (runtime.Ask) may wait for ever: such a gateway is given up after the pause. It runs no code
// any more, and what it had sent is done.
func (s *supervision) checkDying() {
	held := s.gateway != nil && s.gateway.child.Dying() || s.next != nil && s.next.child.Dying()
	switch {
	case !held:
		s.dyingChecks = 0
		s.unfreeze()
	case s.dyingChecks <= maxFrozenChecks:
		if s.dyingChecks++; s.dyingChecks == 2 {
			s.c.Log.Warn().Msg("gateway cannot end: a session's process holds it up in the kernel; sessions pause for it")
			s.unfreezeHost = s.host.FreezeSessions()
		}
	default: // what holds it up is no pipe, but a file system that does not answer
		s.unfreeze()
		for _, g := range []*gateway{s.gateway, s.next} {
			if g != nil && g.child.Dying() {
				s.c.Log.Error().Int("gateway", g.child.Pid()).Msg("gateway cannot end: the kernel holds it up; it is given up, and what it has open stays open")
				g.givenUp = true
				g.link.EndInput()
				s.host.CountAsEnded(g.child)
			}
		}
		s.dyingChecks = 0
	}
}

// unfreeze ends the pause.
func (s *supervision) unfreeze() {
	if s.unfreezeHost != nil {
		s.unfreezeHost()
		s.unfreezeHost = nil
	}
}

// upgrading: its gateway starts, or has taken over and does not serve yet.
func (k *keeper) upgrading() bool { return k.nextExe != (program{}) }

// passSignal does what only a gateway that serves is waited for.
func (s *supervision) passSignal() {
	g := s.gateway
	if g == nil || !g.serving() || s.upgrading() {
		return
	}
	if !g.notified && !s.replacing && !s.stopping { // else upgraded says it
		g.notified = true
		s.notify("READY=1")
	}
	if s.wantedSignal == 0 {
		return
	}
	timeout := gatewayStopTimeout
	if s.wantedSignal == unix.SIGTERM && s.c.Drain > 0 && !s.drained {
		s.draining, s.drained = true, true
		timeout += s.c.Drain
	}
	s.signal(s.wantedSignal)
	s.wantedSignal, s.wantedDeadline, s.deadline = 0, nil, time.After(timeout)
}

func (s *supervision) signalled(sig os.Signal) {
	switch sig, _ := sig.(syscall.Signal); sig {
	case unix.SIGTERM, unix.SIGINT, unix.SIGQUIT:
		s.stop(sig)
	case unix.SIGHUP, unix.SIGUSR1: // `trl upgrade` sends both
		if s.upgrading() || s.replacing {
			return // whoever asks again hears of the outcome of this one
		}
		if err := s.upgrade(s.stopping); err != nil {
			s.upgraded(err)
			return
		}
		s.upgradeDeadline = time.After(takeOverTimeout)
	}
}

// stop begins the end, or what is left of it once the sessions have had their time. Who asks once more waits for nothing.
func (s *supervision) stop(sig syscall.Signal) {
	s.ctxDone = nil
	switch {
	case !s.stopping:
		s.stopping = true
		s.notify("STOPPING=1")
	case s.draining:
		s.draining = false
	default:
		s.killed, s.wantedSignal = true, 0
		for _, g := range []*gateway{s.gateway, s.next} {
			if g != nil {
				_ = g.child.Signal(unix.SIGKILL)
			}
		}
		return
	}
	s.wantedSignal, s.wantedDeadline = sig, time.After(gatewayStopTimeout)
}

// tookOver: an upgrade has its gateway, and next it is our turn.
func (s *supervision) tookOver() {
	s.upgradeDeadline = nil
	s.exe.close()
	s.exe, s.nextExe = s.nextExe, program{}
	if err := checkSuccessor(s.exe.path); err != nil {
		s.upgraded(fmt.Errorf("new gateway, but the keeper stays: %w", err))
		return
	}
	s.replacing = true
	s.replaceDue, s.replaceUntil = time.After(0), time.Now().Add(takeOverTimeout)
}

// replace puts the new program in our place. It returns only where that did not work, or not yet.
func (s *supervision) replace() {
	s.replaceDue = nil
	if s.dyingChecks > 0 && time.Now().Before(s.replaceUntil) { // the sessions may pause, and nobody would know afterwards
		s.replaceDue = time.After(pauseRetry)
		return
	}
	s.unfreeze()
	err := errors.New("it is to end")
	if !s.stopping {
		if err = s.execSuccessor(); errors.Is(err, errBusy) && time.Now().Before(s.replaceUntil) {
			s.replaceDue = time.After(pauseRetry)
			return
		}
	}
	s.replacing = false
	s.upgraded(fmt.Errorf("new gateway, but the keeper stays: %w", err))
}

// gatewayExited is for when the gateway has exited. over: so have we to, with code and err.
func (s *supervision) gatewayExited() (over bool, err error) {
	s.unfreeze()
	g := s.closeGateway()
	s.ready, s.deadline = s.ready || g.serving(), nil
	if s.draining && !g.bye { // the next one is told, too
		s.draining, s.drained, s.wantedSignal = false, false, unix.SIGTERM
	}
	if s.code = g.child.Status().Code; g.givenUp && g.bye {
		s.code = 0 // with which it meant to end
	}
	switch {
	case s.killed:
		s.code = 0
		return true, nil
	case s.stopping && s.wantedSignal == 0 || g.bye:
		return true, nil
	case !s.ready:
		err := fmt.Errorf("gateway never became ready: status %d", s.code)
		s.code = max(s.code, 1)
		return true, err
	case s.next != nil: // it has yielded, or died at the right time
		s.gateway, s.next = s.next, nil
		s.signals.gateway.Store(int64(s.gateway.child.Pid()))
		return false, nil
	case s.upgrading(): // had taken over, and does not serve: back to what did
		s.upgradeDeadline = nil
		s.revert()
		s.upgraded(s.discardGateway(g, s.code))
		s.restartDue = time.After(0)
		return false, nil
	}
	if time.Since(g.began) >= stableAfter {
		s.crashesInARow = 0
	}
	pause := s.crashed()
	s.restartDue = time.After(pause)
	s.c.Log.Error().Int("gateway", g.child.Pid()).Int("status", s.code).AnErr("connection", g.err).
		Int("in_a_row", s.crashesInARow).Dur("pause_ms", pause).Msg("gateway died; sessions live on")
	if s.crashesInARow == crashesToReport {
		s.c.Log.Error().Msg("gateway dies again and again: look at why, sessions cannot be reached")
	}
	return false, nil
}
