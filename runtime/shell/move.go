package shell

import (
	"slices"
	"syscall"

	"trl/runtime/own"
	"trl/runtime/saved"
	"trl/runtime/stream"
)

// The state of a shell can go on in the shell of another gateway: State tells it, and TakeState gives it to the other one.

// State returns the shell's state for TakeState of a fresh shell of the same kind, and names the parts of it that are missing. An empty state is that of
// a fresh shell. The output of all commands that have ended is in the archive of the session log then, as far as there was memory. State waits until the
// shell has answered, within the bounds of a snapshot. The caller makes sure that no Run goes on.
func (s *Shell) State() (state []byte, lost []string, err error) {
	if err := s.takeTurn(); err != nil {
		return nil, nil, err
	}
	defer s.giveTurn()
	p := s.proc()
	if p == nil || s.closing.Load() || p.dead() {
		return nil, nil, ErrShellGone
	}
	if s.state.Wanted() {
		s.snapshot(p)
	}
	s.awaitSnapshot(p)
	s.closePipes()
	state, current := s.state.Newest()
	switch {
	case !current:
		lost = slices.Clone(allState)
	case !p.dialect.ListsFunctions && s.mayHaveFunctions.Load():
		lost = []string{"functions"}
	}
	return state, lost, nil
}

// TakeState replaces the shell by one with the state that State of another shell has returned, and names what the new one lacks of it. After an error the
// shell is of no use. The caller makes sure that no Run goes on.
func (s *Shell) TakeState(state []byte) (lost []string, err error) {
	if len(state) == 0 {
		return nil, nil
	}
	if err := s.takeTurn(); err != nil {
		return nil, err
	}
	defer s.giveTurn()
	p := s.proc()
	if p == nil || s.closing.Load() {
		return nil, ErrShellGone
	}
	s.takesState = true
	defer func() { s.takesState = false }()
	_ = p.child.Signal(syscall.SIGKILL)
	s.state.Load(state)
	s.mayTrapLines = true // unknown, so we assume it
	var after saved.Replaced
	err = s.restoreShell(p, &after, scarceTimeout)
	return after.Lost, err
}

// Moved returns an Adoption of the ended work of another node's session, whose output is in the archive of the shell's session log. Only its methods
// for ended work may be called, and then CloseRest.
func (s *Shell) Moved() *Adoption {
	group := s.currentGroup()
	log := s.b.Log.With().Str("session", s.cfg.ID).Logger()
	return &Adoption{
		Restorer: stream.NewMovedRestorer(group, s.streamLogs, log), b: s.b, from: own.HeldSession{ID: s.cfg.ID, Group: group}, shell: s, knownScopes: map[int]bool{},
	}
}
