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

// supervision is the life of the keeper: one gateway after the other, until the end. supervise waits for events, and each event has a
// method. supervise owns all fields.
type supervision struct {
	*keeper
	code  int  // exit code of the last gateway
	ready bool // a gateway has served

	stopping     bool           // somebody asked us to end
	wantedSignal syscall.Signal // the signal that asked, until a gateway that serves gets it; 0: none
	draining     bool           // stopping, but the sessions may go on for Config.Drain
	drained      bool           // the drain has begun before
	killed       bool           // somebody asked again, and no longer waits for an orderly end

	ctxDone         <-chan struct{}  // the end of Run's context; nil afterwards
	wantedDeadline  <-chan time.Time // when wantedSignal has waited too long for a gateway that serves
	deadline        <-chan time.Time // when the gateway has had its time to end
	restartDue      <-chan time.Time // when to start the next gateway
	upgradeDeadline <-chan time.Time // when the upgrade's gateway has had its time to take over
	dyingChecks     int              // checks in a row that saw a gateway which was exiting and had not ended
	unfreezeHost    func()           // ends the pause of the sessions; nil: they are not paused
	replaceDue      <-chan time.Time // when to replace ourselves
	replaceUntil    time.Time        // when to give that up
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
		case <-served: // it has lost us, or violated the protocol
			s.deadline = time.After(connectionEndTimeout)
		case <-s.deadline:
			s.deadline = nil
			s.c.Log.Error().Int("gateway", s.gateway.child.Pid()).Msg("gateway did not end, killed")
			s.signal(unix.SIGKILL)
		case <-s.restartDue:
			if err := s.start(); err != nil { // treated like a crash; the reason may be temporary
				s.c.Log.Error().Err(err).Msg("gateway does not start")
				s.restartDue = time.After(s.crashed())
			}
		case <-serves:
			if s.upgrading() {
				s.tookOver()
			}
		case <-s.replaceDue:
			s.replace()
		case <-failed: // before it took over, so the old gateway is unaffected
			s.unfreeze()
			s.upgradeDeadline = nil
			err := s.discardGateway(s.next, s.next.child.Status().Code)
			s.next = nil
			s.revert()
			s.upgraded(err)
		case <-s.upgradeDeadline: // the new gateway hangs, or the old one
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
	// A gateway that is killed or exits is gone within milliseconds. A session blocks one that still exits at the second check in a row;
	// see checkDying.
	dyingCheckInterval = time.Second
	// maxFrozenChecks bounds how many checks long the sessions pause.
	maxFrozenChecks = 5
)

// checkDying helps a gateway that has begun to exit and cannot end, because one of its threads is in a call on a pipe. A process of a
// session holds the pipe's lock for as long as it waits for something else (see journal's splice). A pause of the sessions makes every such
// process release the lock. A thread that waits for a file system (shell.Ask) may wait for ever; checkDying gives up such a gateway after
// the pause. That gateway runs no code any more, and its requests are done.
func (s *supervision) checkDying() {
	held := s.gateway != nil && s.gateway.child.Dying() || s.next != nil && s.next.child.Dying()
	switch {
	case !held:
		s.dyingChecks = 0
		s.unfreeze()
	case s.dyingChecks <= maxFrozenChecks:
		if s.dyingChecks++; s.dyingChecks == 2 {
			s.c.Log.Warn().Msg("gateway cannot end: a session's process blocks it in the kernel; the sessions pause meanwhile")
			s.unfreezeHost = s.host.FreezeSessions()
		}
	default: // a file system that does not answer blocks it, not a pipe
		s.unfreeze()
		for _, g := range []*gateway{s.gateway, s.next} {
			if g != nil && g.child.Dying() {
				s.c.Log.Error().Int("gateway", g.child.Pid()).Msg("gateway cannot end: the kernel blocks it; the keeper gives it up, and its descriptors stay open")
				g.givenUp = true
				g.link.EndInput()
				s.host.CountAsEnded(g.child)
			}
		}
		s.dyingChecks = 0
	}
}

// unfreeze ends the pause of the sessions.
func (s *supervision) unfreeze() {
	if s.unfreezeHost != nil {
		s.unfreezeHost()
		s.unfreezeHost = nil
	}
}

// upgrading says whether an upgrade's gateway starts, or has taken over and does not serve yet.
func (k *keeper) upgrading() bool { return k.nextExe != (program{}) }

// passSignal tells the supervisor that the gateway serves, and passes wantedSignal to it.
func (s *supervision) passSignal() {
	g := s.gateway
	if g == nil || !g.serving() || s.upgrading() {
		return
	}
	if !g.notified && !s.replacing && !s.stopping { // otherwise upgraded notifies
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
			return // the second request gets the outcome of the first
		}
		if err := s.upgrade(s.stopping); err != nil {
			s.upgraded(err)
			return
		}
		s.upgradeDeadline = time.After(takeOverTimeout)
	}
}

// stop begins the end, or ends a drain. A further signal kills the gateways at once.
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

// tookOver runs when the upgrade's gateway serves. Then the keeper replaces itself.
func (s *supervision) tookOver() {
	s.upgradeDeadline = nil
	s.exe.close()
	s.exe, s.nextExe = s.nextExe, program{}
	if err := checkSuccessor(s.exe.path); err != nil {
		s.upgraded(fmt.Errorf("the gateway is new, but the keeper stays: %w", err))
		return
	}
	s.replacing = true
	s.replaceDue, s.replaceUntil = time.After(0), time.Now().Add(takeOverTimeout)
}

// replace execs the new program in our place. It returns only if that failed or has to wait.
func (s *supervision) replace() {
	s.replaceDue = nil
	if s.dyingChecks > 0 && time.Now().Before(s.replaceUntil) { // the sessions may be paused, and the next program would not know it
		s.replaceDue = time.After(pauseRetry)
		return
	}
	s.unfreeze()
	err := errors.New("the keeper is ending")
	if !s.stopping {
		if err = s.execSuccessor(); errors.Is(err, errBusy) && time.Now().Before(s.replaceUntil) {
			s.replaceDue = time.After(pauseRetry)
			return
		}
	}
	s.replacing = false
	s.upgraded(fmt.Errorf("the gateway is new, but the keeper stays: %w", err))
}

// gatewayExited handles the exit of the gateway. over: the keeper must end, with s.code and err.
func (s *supervision) gatewayExited() (over bool, err error) {
	s.unfreeze()
	g := s.closeGateway()
	s.ready, s.deadline = s.ready || g.serving(), nil
	if s.draining && !g.bye { // the next gateway must drain as well
		s.draining, s.drained, s.wantedSignal = false, false, unix.SIGTERM
	}
	if s.code = g.child.Status().Code; g.givenUp && g.bye {
		s.code = 0 // the status that it announced with its bye
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
	case s.next != nil: // it has yielded, or happened to die at that moment
		s.gateway, s.next = s.next, nil
		s.signals.gateway.Store(int64(s.gateway.child.Pid()))
		return false, nil
	case s.upgrading(): // it had taken over but did not serve: go back to the old program
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
		s.c.Log.Error().Msg("gateway keeps dying: find out why; nobody can reach the sessions")
	}
	return false, nil
}
