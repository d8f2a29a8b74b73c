package shell

import (
	"cmp"
	"container/list"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"trl/runtime/crashpoint"
	"trl/runtime/descriptor"
	"trl/runtime/own"
	"trl/runtime/snapshot"
)

// An idle session holds few descriptors. Rest closes what only a running command needs, our copies of what the keeper holds, and the keeper's files that
// the shell reads only after they were written anew. Whoever takes the turn gets them back.

// resting says which of its descriptors a shell has closed. The holder of the turn owns it.
type resting struct {
	rests      bool                   // our copies of what the keeper holds
	gaugeRests bool                   // the gauge's files
	used       bool                   // giveTurn adds the shell to the ready ones
	onWake     atomic.Pointer[func()] // see OnWake
	hurry      atomic.Bool            // there are too many ready shells: rest soon
	ready      *list.Element          // guarded by readyShells.mu; nil: not in the list
}

// readyShells are the shells of a gateway that are idle and do not rest yet.
type readyShells struct {
	mu  sync.Mutex
	all list.List // guarded by mu; of *Shell, the longest idle first
}

// readyShare bounds the number of ready shells: so many may be open files of a process for each. A ready shell has some 30 in both processes.
const (
	readyShare  = 100
	fewestReady = 4
)

var mostReady = sync.OnceValue(func() int {
	_, most := descriptor.Count()
	return max(fewestReady, most/readyShare)
})

// add adds a shell, which has just been used. If there are too many, the one that has been idle for longest must rest soon.
func (r *readyShells) add(s *Shell, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.closing.Load() {
		return
	}
	r.removeLocked(s)
	s.ready = r.all.PushBack(s)
	if r.all.Len() > most {
		first := r.all.Front().Value.(*Shell)
		r.removeLocked(first)
		first.hurry.Store(true)
		if f := first.onWake.Load(); f != nil {
			(*f)()
		}
	}
}

// remove removes a shell that is in use, rests, or is closed.
func (r *readyShells) remove(s *Shell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(s)
}

func (r *readyShells) removeLocked(s *Shell) {
	if s.ready != nil {
		r.all.Remove(s.ready)
		s.ready = nil
	}
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

func (s *Shell) giveTurn() {
	if s.used {
		s.used = false
		s.b.ready.add(s, cmp.Or(s.b.MostReady, mostReady()))
	}
	s.turn <- struct{}{}
}

const (
	restDelay  = 10 * time.Second       // how long a shell must be idle before it rests
	hurryPause = 200 * time.Millisecond // between attempts, if there are too many ready shells
)

// Idle is called when the shell has been idle for that long. It requests a snapshot, or makes the shell rest, if that is due. It returns after how long to
// call it again, 0 for not before the shell has done something.
func (s *Shell) Idle(idle time.Duration) time.Duration {
	again := s.SnapshotIfDue()
	switch {
	case again > 0:
		return again
	case idle < restDelay && !s.hurry.Load():
		return restDelay - idle
	case s.Rest():
		return 0
	case s.hurry.Load():
		return hurryPause
	}
	return restDelay
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
	s.b.ready.remove(s)
	p := s.proc()
	if p == nil || p.dead() || s.closing.Load() {
		return true // Revive, Reset or Close comes next
	}
	s.closePipes()
	s.EndWarmTerminal()
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
	s.dropSpare(p)
	return true
}

// dropSpare drops the files into which the shell, or we for it, will write anew before anything reads them. The entry comes first: an entry names only
// files that the keeper has.
func (s *Shell) dropSpare(p *shellProc) {
	spare, ok := s.state.Spare()
	if !ok {
		return
	}
	if text := p.held[heldText]; text != 0 {
		spare = append(spare, text)
		p.setText(-1, 0)
	}
	if len(spare) == 0 {
		return
	}
	s.save()
	crashpoint.Here("before a shell at rest drops files")
	s.currentGroup().Drop(spare...)
}

// wakeUp ends a Rest, also one of an earlier gateway, and counts the shell as in use until giveTurn. The caller has the turn.
func (s *Shell) wakeUp() (err error) {
	s.b.ready.remove(s)
	s.hurry.Store(false)
	s.used = true
	p, group := s.proc(), s.currentGroup()
	var lent []int // the keeper's numbers
	if s.rests && p != nil {
		lent = append(slices.DeleteFunc([]int{p.held[heldScript], p.held[heldCtlR], p.held[heldText]}, func(n int) bool { return n == 0 }), s.state.HeldFiles()...)
	}
	noText := p != nil && p.held[heldText] == 0
	kinds := snapshot.Kinds[:s.state.Missing()]
	if noText {
		kinds = append(slices.Clone(kinds), own.MemFile)
	}
	if lent == nil && len(kinds) == 0 {
		return nil
	}
	var fds []int
	var made []own.Channel
	err = own.Concurrently(
		func() (err error) {
			if lent != nil {
				fds, err = group.Lend(p.child, lent...)
			}
			return err
		},
		func() (err error) {
			if len(kinds) > 0 {
				if made, _, err = group.MakeChannels(kinds); err == nil {
					err = s.state.Unarchive(made)
				}
			}
			return err
		})
	if err != nil {
		descriptor.CloseAll(fds)
		if fds != nil {
			p.child.Rest()
		}
		own.CloseChannels(made)
		for _, m := range made {
			group.Drop(m.HeldW)
		}
		return fmt.Errorf("descriptors of an idle session: %w", err)
	}
	if lent != nil {
		p.script, p.ctlR, fds = fds[0], fds[1], fds[2:]
		if !noText {
			p.text, fds = fds[0], fds[1:]
		}
		s.state.WakeUp(fds)
	}
	if made != nil {
		if noText {
			m := made[len(made)-1]
			p.setText(m.W, m.HeldW)
			made = made[:len(made)-1]
		}
		s.state.Add(made)
		crashpoint.Here("when a waking shell has files again")
		s.save()
		s.state.ReleaseArchived()
	}
	if lent != nil {
		s.rests = false
		if f := s.onWake.Load(); f != nil {
			(*f)()
		}
	}
	return nil
}

// OnWake sets a function that is called when the shell no longer rests, or is to rest soon: Idle is to be called again. The function does not wait.
func (s *Shell) OnWake(f func()) { s.onWake.Store(&f) }
