package keeper

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"trl/runtime"
	"trl/runtime/descriptor"
	"trl/runtime/keeper/wire"
)

// A server does for one gateway at a time what that may not do itself, and remembers it for the next one: groups, scopes,
// children, and held descriptors, whose numbers are those of our own table. Its owner calls serve for each connection,
// and wait after the Host has ended.
type server struct {
	host      *runtime.Host
	listeners []*os.File
	epoch     string
	numbers   func() wire.Numbers
	log       zerolog.Logger
	handlers  map[string]handler // by message.Op; never written after newServer
	work      sync.WaitGroup     // requests that take their time, and tellWhenExited
	slow      atomic.Int64       // those requests
	starts    sync.WaitGroup     // those of them that start a process; added to by who has the watch, and waited for by listen
	reader    *requestReader     // set by listen
	readPause atomic.Pointer[readPause]

	mu          sync.Mutex          // before link.mu
	link        *wire.Link          // guarded by mu; of the gateway that has said hello; nil: none
	linkEnded   chan struct{}       // guarded by mu; closed when link ends; nil without one
	generation  int                 // guarded by mu; how many gateways have said hello
	sessions    map[string]*session // guarded by mu; until dropall
	serial      uint64              // guarded by mu; the last child's number
	remembered  []byte              // guarded by mu; what the last gateway that had something wants the next one to know
	reservedFDs []int               // guarded by mu; descriptors open on nothing of use, see reserveFDs
}

// A session is what we have of one.
type session struct {
	*runtime.Group
	id         string
	closed     bool                   // guarded by server.mu: its processes are gone; what is held may remain, and it may be opened anew
	scopes     map[int]*runtime.Scope // guarded by server.mu; by number
	children   map[uint64]*process    // guarded by server.mu; until ended and released
	held       map[int]int            // guarded by server.mu; our descriptor by the number it goes by, which mostly is the same
	slowCloser slowCloser
}

// A process is a child that a gateway asked for.
type process struct {
	*runtime.Child
	number   uint64
	session  *session
	ended    bool // guarded by server.mu
	released bool // guarded by server.mu: no gateway needs to hear of it again
}

func newServer(host *runtime.Host, epoch string, listeners []*os.File, numbers func() wire.Numbers, log zerolog.Logger) *server {
	s := &server{
		host: host, epoch: epoch, listeners: listeners, numbers: numbers, log: log,
		sessions: map[string]*session{},
	}
	tier, _ := host.Isolation()
	s.handlers = s.newHandlers(tier != "cgroup")
	return s
}

// serve answers one gateway until the connection ends. What that has sent is done, even if it is dead by then: it may
// have acted on it already. dead closes with the process, if it is one of ours; ready is called once it says that it
// serves; bye: it means to end, and everything with it.
func (s *server) serve(l *wire.Link, dead <-chan struct{}, ready func()) (bye bool, err error) {
	defer l.Close()
	if err := s.welcome(l, dead); err != nil {
		return false, err
	}
	return s.readRequests(l, ready)
}

// A readPause is a time in which serve reads nothing.
type readPause struct {
	begun, over chan struct{} // closed by serve, and by who asked for it
}

// pauseReading makes serve stop between two messages, and resting says that no request is under way then. resume ends it.
func (s *server) pauseReading(l *wire.Link, timeout time.Duration) (resume func(), resting bool) {
	p := &readPause{begun: make(chan struct{}), over: make(chan struct{})}
	s.readPause.Store(p)
	resume = func() { close(p.over) }
	l.InterruptReceive()
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case <-p.begun:
	case <-late.C:
		return resume, false
	}
	for s.slow.Load() > 0 || !l.Idle() {
		select {
		case <-time.After(time.Millisecond):
		case <-late.C:
			return resume, false
		}
	}
	return resume, true
}

// readRequests is serve after the welcome.
func (s *server) readRequests(l *wire.Link, ready func()) (bye bool, err error) {
	defer func() {
		l.Close()       // nothing is lent any more
		s.starts.Wait() // who comes next is told of every child
		s.mu.Lock()
		s.link = nil
		close(s.linkEnded)
		s.mu.Unlock()
	}()
	s.reserveFDs()
	w := &requestReader{s: s, l: l, ready: ready, ended: make(chan error, 1)}
	s.reader = w
	go w.read() // or who relieves it: ends with the connection, for which we wait here, or with a start, which starts waits for
	err = <-w.ended
	return w.bye, err
}

// welcome answers a hello with all that there is. While another gateway has that, it is told to leave, and waited for:
// what it has under way, two could not go on with.
func (s *server) welcome(l *wire.Link, dead <-chan struct{}) error {
	_, files, theirs, err := l.ReceiveHello()
	descriptor.CloseAll(files)
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if theirs != wire.Version {
		err := &wire.VersionError{Keeper: wire.Version, Gateway: theirs}
		_ = l.Send(wire.Message{Version: wire.Version, Op: wire.OpHello, Fault: wire.FaultOf(err)})
		return err
	}
	fd, err := wire.Duplicate(l.Descriptor()) // what a long answer takes; for want of it, nobody leaves for nothing
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	room := os.NewFile(uintptr(fd), "room")
	defer room.Close()
	s.mu.Lock()
	defer s.mu.Unlock() // no exit is told before, and none is missed after
	for s.link != nil {
		vacant := s.linkEnded
		_ = s.link.Send(wire.Message{Op: wire.OpYield})
		s.mu.Unlock()
		select {
		case <-vacant: // supervise sees to it
		case <-dead:
			s.mu.Lock()
			return errors.New("it gave up waiting")
		}
		s.mu.Lock()
	}
	st, files, own := s.stateLocked()
	room.Close()
	if err := l.SendBorrowed(wire.Message{Version: wire.Version, Op: wire.OpHello, State: st}, files, own); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	s.generation++
	s.link, s.linkEnded = l, make(chan struct{})
	return nil
}

// stateLocked: mu is held. Of the files, own are the caller's; there may be no room for copies of the others.
func (s *server) stateLocked() (st *wire.State, files, own []int) {
	st = &wire.State{Epoch: s.epoch, Pid: os.Getpid(), Generation: s.generation}
	st.Instance = s.host.Instance()
	st.Tier, st.Why = s.host.Isolation()
	st.Tiers = s.host.Tiers()
	st.Unenforceable = s.host.Unenforceable()
	_, st.Descriptors = descriptor.Count()
	st.FIFODir, st.OtherUser = s.host.FIFODir(), s.host.RunsAsOtherUser()
	give := func(fd int) {
		if fd >= 0 {
			files, own = append(files, fd), append(own, fd)
		}
	}
	for _, f := range s.listeners {
		st.Listeners = append(st.Listeners, f.Name())
		files = append(files, int(f.Fd()))
	}
	orphans := s.host.OpenOrphanList()
	st.Orphans = orphans >= 0
	give(orphans)
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		g := s.sessions[id]
		gs := wire.GroupState{ID: id}
		for _, no := range slices.Sorted(maps.Keys(g.scopes)) {
			// A scope that cannot be looked at is asked for.
			fd, _ := g.scopes[no].OpenPIDList()
			give(fd)
			gs.Scopes = append(gs.Scopes, wire.ScopeState{Number: no, Mark: g.scopes[no].Mark(), Listed: fd >= 0})
		}
		for _, number := range slices.Sorted(maps.Keys(g.children)) {
			c := g.children[number]
			cs := wire.ChildState{Child: number, Pid: c.Pid()}
			if c.ended {
				cs.Status = wire.StatusOf(c.Status())
			}
			fd := c.Pidfd()
			if c.released { // its end closes it
				fd, _ = wire.Duplicate(fd)
				give(fd)
			} else if fd >= 0 {
				files = append(files, fd)
			}
			cs.Pinned = fd >= 0
			gs.Children = append(gs.Children, cs)
		}
		for _, number := range slices.Sorted(maps.Keys(g.held)) {
			gs.Held = append(gs.Held, number)
			files = append(files, g.held[number])
		}
		st.Groups = append(st.Groups, gs)
	}
	return st, files, own
}

// rememberedEnv is what Remembered reads.
func (s *server) rememberedEnv() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remembered == nil {
		return nil
	}
	return []string{wire.RememberedVar + "=" + base64.StdEncoding.EncodeToString(s.remembered)}
}

// find returns a group, and its scope unless number is 0.
func (s *server) find(id string, number int) (*session, *runtime.Scope, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.sessions[id]
	if g == nil {
		return nil, nil, fmt.Errorf("group %q: %w", id, fs.ErrClosed)
	}
	c := g.scopes[number]
	if c == nil && number != 0 {
		return nil, nil, fmt.Errorf("scope %d of %s: %w", number, id, fs.ErrClosed)
	}
	return g, c, nil
}

// wait returns when nothing is under way; the Host has ended before, and with it every child.
func (s *server) wait() {
	s.work.Wait()
	s.freeReservedFDs()
}

func texts(b [][]byte) []string {
	t := make([]string, len(b))
	for i := range b {
		t[i] = string(b[i])
	}
	return t
}
