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

	"trl/runtime/descriptor"
	"trl/runtime/host"
	"trl/runtime/keeper/wire"
)

// server does for one gateway at a time what the gateway may not do itself, and remembers it for the next gateway: groups, scopes, children
// and held descriptors. A held descriptor's number is that in our own table. The owner calls serve for each connection, and wait after the
// Host has ended.
type server struct {
	host      *host.Host
	listeners []*os.File
	epoch     string
	numbers   func() wire.Numbers
	log       zerolog.Logger
	handlers  map[string]handler // by wire.Message.Op; never written after newServer
	work      sync.WaitGroup     // slow requests, and tellWhenExited
	slow      atomic.Int64       // number of slow requests
	starts    sync.WaitGroup     // requests that start a process; the reading goroutine adds, readRequests waits
	reader    *requestReader     // set by readRequests
	readPause atomic.Pointer[readPause]

	mu          sync.Mutex          // before link.mu
	link        *wire.Link          // guarded by mu; of the gateway that has said hello; nil: none
	linkEnded   chan struct{}       // guarded by mu; closed when link ends; nil without a link
	generation  int                 // guarded by mu; number of gateways that have said hello
	sessions    map[string]*session // guarded by mu; until OpDropAll
	serial      uint64              // guarded by mu; the last child's number
	remembered  []byte              // guarded by mu; the last text of OpRemember, for the next gateway
	reservedFDs []int               // guarded by mu; descriptors of no other use, see reserveFDs
}

// session is what the server has of one session.
type session struct {
	*host.Group
	id         string
	closed     bool                // guarded by server.mu: its processes have ended; held descriptors may remain, and the group may be opened again
	scopes     map[int]*host.Scope // guarded by server.mu; by number
	children   map[uint64]*process // guarded by server.mu; until ended and released
	held       map[int]int         // guarded by server.mu; our descriptor by its number for the gateway, usually the same
	slowCloser slowCloser
}

// process is a child that a gateway asked for.
type process struct {
	*host.Child
	number   uint64
	session  *session
	ended    bool // guarded by server.mu
	released bool // guarded by server.mu: no gateway needs to hear of it again
}

func newServer(host *host.Host, epoch string, listeners []*os.File, numbers func() wire.Numbers, log zerolog.Logger) *server {
	s := &server{
		host: host, epoch: epoch, listeners: listeners, numbers: numbers, log: log,
		sessions: map[string]*session{},
	}
	tier, _ := host.Isolation()
	s.handlers = s.newHandlers(tier != "cgroup")
	return s
}

// serve answers one gateway until the connection ends. It does everything that the gateway has sent, even if the gateway is dead by then,
// because the gateway may already have relied on it. dead closes when the process ends. ready is called when the gateway reports that it
// serves. bye: the gateway said that everything must end with it.
func (s *server) serve(l *wire.Link, dead <-chan struct{}, ready func()) (bye bool, err error) {
	defer l.Close()
	if err := s.welcome(l, dead); err != nil {
		return false, err
	}
	return s.readRequests(l, ready)
}

// readPause is a time in which serve reads nothing.
type readPause struct {
	begun, over chan struct{} // begun is closed by the reading goroutine, over by resume
}

// pauseReading makes serve pause between two messages. resting: no request is under way then. resume ends the pause.
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

// readRequests is the part of serve after the welcome.
func (s *server) readRequests(l *wire.Link, ready func()) (bye bool, err error) {
	defer func() {
		l.Close()       // no descriptor is borrowed any more
		s.starts.Wait() // the next gateway must hear of every child
		s.mu.Lock()
		s.link = nil
		close(s.linkEnded)
		s.mu.Unlock()
	}()
	s.reserveFDs()
	w := &requestReader{s: s, l: l, ready: ready, ended: make(chan error, 1)}
	s.reader = w
	go w.read() // ends with the connection, for which we wait here, or, after a handoff, with a start, for which starts.Wait waits
	err = <-w.ended
	return w.bye, err
}

// welcome answers a hello with everything that the server has. If another gateway has it, welcome tells that gateway to leave and waits for
// its end, because two gateways could not continue the same work.
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
	fd, err := wire.Duplicate(l.Descriptor()) // the descriptor that a long answer takes; without it, no gateway leaves in vain
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	room := os.NewFile(uintptr(fd), "room")
	defer room.Close()
	s.mu.Lock()
	defer s.mu.Unlock() // so that no exit is sent before the answer, and none is lost after it
	for s.link != nil {
		vacant := s.linkEnded
		_ = s.link.Send(wire.Message{Op: wire.OpYield})
		s.mu.Unlock()
		select {
		case <-vacant: // supervise makes sure of it
		case <-dead:
			s.mu.Lock()
			return errors.New("the new gateway died while it waited")
		}
		s.mu.Lock()
	}
	st, files, own := s.stateLocked()
	room.Close()
	if err := l.SendBorrowed(wire.Message{Version: wire.Version, Op: wire.OpHello, Count: wire.Revision, State: st}, files, own); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	s.generation++
	s.link, s.linkEnded = l, make(chan struct{})
	return nil
}

// stateLocked returns the state and its descriptors. own are those that the caller must close; there may be no room for copies of the
// others. mu is held.
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
			// If the list cannot be opened, the gateway asks the keeper instead.
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
			fd := c.OpenPidfd()
			give(fd)
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

// rememberedEnv is the environment variable that client.Remembered reads.
func (s *server) rememberedEnv() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remembered == nil {
		return nil
	}
	return []string{wire.RememberedVar + "=" + base64.StdEncoding.EncodeToString(s.remembered)}
}

// find returns a group, and its scope unless number is 0.
func (s *server) find(id string, number int) (*session, *host.Scope, error) {
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

// wait returns when no request is under way. The Host has ended before, and with it every child.
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
