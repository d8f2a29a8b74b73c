// Package retained has the ended work that a session keeps for a while, within bounds.
package retained

import (
	"slices"
	"time"
)

// Bounds of one session.
const (
	MaxWork  = 1000     // execs, processes and terminals
	MaxBytes = 16 << 20 // the newest stays whatever its size
)

// Work is an exec, a process or a terminal that has ended and is retained.
type Work interface {
	ID() string
	EndTime() time.Time
	Weight() int64 // bytes that it takes now
	MayGrow() bool // jobs that it left behind may add output
	Discard()      // called when it is no longer retained: its request_key, if remembered longer, shall keep no output
}

// Set is the ended work that a session retains, in the order of the ends. Its owner makes sure that one goroutine at a time calls its methods.
type Set struct {
	OutputBytes int64 // that ended work has ever written, for the log

	count   func(more int64) // counts bytes for all sessions
	all     []*weighed       // oldest first
	growing []*weighed       // those of all whose weight may grow: only they are weighed again
	weight  int64            // sum of all weights
}

type weighed struct {
	Work
	counted int64
}

// New returns an empty Set. count is told of all bytes that it takes more or less.
func New(count func(more int64)) Set { return Set{count: count} }

// Add adds what has just ended.
func (s *Set) Add(w Work) {
	k := &weighed{Work: w}
	s.all = append(s.all, k)
	if s.weigh(k) {
		s.growing = append(s.growing, k)
	}
}

// weigh updates the weight of k, and reports whether it may grow further.
func (s *Set) weigh(k *weighed) (again bool) {
	again = k.MayGrow() // asked before Weight: what may not grow has its final weight
	w := k.Weight()
	s.weight += w - k.counted
	s.count(w - k.counted)
	k.counted = w
	return again
}

// WeighAgain weighs what jobs still write to.
func (s *Set) WeighAgain() {
	s.growing = slices.DeleteFunc(s.growing, func(k *weighed) bool { return !s.weigh(k) })
}

// IsOver reports whether the oldest has to go.
func (s *Set) IsOver() bool {
	return len(s.all) > MaxWork || s.weight > MaxBytes && len(s.all) > 1
}

// TakeOldest removes the oldest.
func (s *Set) TakeOldest() Work {
	oldest := s.all[0]
	s.all[0] = nil
	s.all = s.all[1:]
	if i := slices.Index(s.growing, oldest); i >= 0 {
		s.growing = slices.Delete(s.growing, i, i+1)
	}
	s.weight -= oldest.counted
	s.count(-oldest.counted)
	return oldest.Work
}

// Len returns how many there are.
func (s *Set) Len() int { return len(s.all) }

// At returns one, the oldest for 0.
func (s *Set) At(i int) Work { return s.all[i].Work }

// Weight returns how many bytes all of it takes.
func (s *Set) Weight() int64 { return s.weight }

// Growing returns how much of it may grow.
func (s *Set) Growing() int { return len(s.growing) }

// MayGrow reports whether jobs still hold the output of some of it.
func (s *Set) MayGrow() bool {
	return slices.ContainsFunc(s.growing, func(k *weighed) bool { return k.MayGrow() })
}

// EndsBut returns when all ended but the newest n.
func (s *Set) EndsBut(n int) (ends []time.Time) {
	for _, k := range s.all[:max(0, len(s.all)-n)] {
		ends = append(ends, k.EndTime())
	}
	return ends
}

// TrimShare is the part of a principal's work (1/16) that is dropped at once, so that not every command has to search for work to drop.
const TrimShare = 16

// Oldest returns up to which end the work of a principal is dropped, of which ends are all. any is false if there is none.
func Oldest(ends []time.Time) (last time.Time, any bool) {
	if len(ends) == 0 {
		return last, false
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends[(len(ends)-1)/TrimShare], true
}
