package shell

import (
	"fmt"
	"time"
)

// An idle session holds few descriptors. Rest closes what only a running command needs, and our copies of what the keeper holds. Whoever takes the turn
// gets them back.

// resting says which of its descriptors a shell has closed. The holder of the turn owns it.
type resting struct {
	rests      bool   // our copies of what the keeper holds
	gaugeRests bool   // the gauge's files
	onWake     func() // see OnWake; set once
}

// takeTurn takes the turn, and the shell's descriptors if it rests. After an error the caller does not have the turn.
func (s *Shell) takeTurn() error {
	<-s.turn
	if err := s.wakeUp(); err != nil {
		s.giveTurn()
		return err
	}
	return nil
}

func (s *Shell) giveTurn() { s.turn <- struct{}{} }

// restDelay is how long a shell must be idle before it rests.
const restDelay = 10 * time.Second

// Idle is called when the shell has been idle for that long. It requests a snapshot, or makes the shell rest, if that is due. It returns after how long to
// call it again, 0 for not before the shell has done something.
func (s *Shell) Idle(idle time.Duration) time.Duration {
	again := s.SnapshotIfDue()
	switch {
	case again > 0:
		return again
	case idle < restDelay:
		return restDelay - idle
	case !s.Rest():
		return restDelay
	}
	return 0
}

// Rest closes what an idle shell does not need. It returns false if it must be called again later: something else has the shell, or the shell has not done
// all that it was asked for.
func (s *Shell) Rest() bool {
	select {
	case <-s.turn:
	default:
		return false
	}
	defer s.giveTurn()
	p := s.proc()
	if p == nil || p.dead() || s.closing.Load() {
		return true // Revive, Reset or Close comes next
	}
	s.closePipes()
	s.gauge.Close()
	s.gaugeRests = s.gauge != nil
	s.poll.Rest()
	p.scope.Rest()
	if s.rests || !s.currentGroup().HeldElsewhere() {
		return true
	}
	if p.unread() > 0 || !s.state.Rest() {
		return false
	}
	p.closeChannels()
	p.child.Rest()
	s.rests = true
	return true
}

// wakeUp ends a Rest. The caller has the turn.
func (s *Shell) wakeUp() error {
	p := s.proc()
	if !s.rests || p == nil {
		return nil
	}
	state := s.state.HeldFiles()
	fds, err := s.currentGroup().Lend(p.child, append([]int{p.held[heldScript], p.held[heldCtlR], p.held[heldText]}, state...)...)
	if err != nil {
		return fmt.Errorf("descriptors of an idle session: %w", err)
	}
	p.script, p.ctlR, p.text = fds[0], fds[1], fds[2]
	s.state.WakeUp(fds[3:])
	s.rests = false
	if s.onWake != nil {
		s.onWake()
	}
	return nil
}

// OnWake sets a function that is called when the shell no longer rests. It is called once, by the goroutine that calls Rest.
func (s *Shell) OnWake(f func()) { s.onWake = f }
