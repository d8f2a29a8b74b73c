// Package client is the gateway's end of the keeper's socket: Dial gives a runtime.Keeper, whose groups, scopes and children are
// the keeper's.
package client

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime"
	"trl/runtime/crashpoint"
	"trl/runtime/descriptor"
	"trl/runtime/keeper/wire"
)

// Started tells whether this process was started by a keeper. Before Inherit.
func Started() bool { _, ok := os.LookupEnv(wire.FDVar); return ok }

// RestoreEnviron sets the environment that a keeper started this process with; it does nothing where there is none. Before
// anything else, once.
func RestoreEnviron() error {
	if !Started() {
		return nil
	}
	const fd = 4
	text, err := wire.ReadSealed(fd)
	if err != nil {
		return fmt.Errorf("environment from the keeper: %w", err)
	}
	unix.Close(fd)
	wire.SetEnviron(strings.Split(string(text), "\x00"))
	return nil
}

// Remembered is what an earlier gateway told the keeper last; ok: this one takes the place of a gateway that died. One that is to take
// over from a gateway that serves is told nothing: if it cannot do without, it is the wrong one. Once, after RestoreEnviron.
func Remembered() (text []byte, ok bool) {
	encoded, ok := os.LookupEnv(wire.RememberedVar)
	os.Unsetenv(wire.RememberedVar)
	if !ok || !Started() {
		return nil, false
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	return text, err == nil
}

// GatewaySocket returns the socket that a gateway was started with; nil: this process was not started by a keeper. No child of
// ours gets it.
func GatewaySocket() (*os.File, error) {
	text, ok := os.LookupEnv(wire.FDVar)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(wire.FDVar)
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q: %w", wire.FDVar, text, fs.ErrInvalid)
	}
	unix.CloseOnExec(fd)
	wire.NameProcess()
	return os.NewFile(uintptr(fd), "keeper"), nil
}

// A Client is the gateway's end: runtime.Keeper across the socket. When the keeper is gone Done closes, and every call
// returns ErrLost at once. The owner ends with Bye, which takes everything along, or with Close, which leaves it to the
// next gateway.
type Client struct {
	link         *wire.Link
	log          zerolog.Logger
	State        wire.State // set once in Dial
	orphans      int        // fd of the keeper's list, see runtime.EmptyCheck; -1: none. Closed by hear
	files        []*os.File
	heldSessions []runtime.HeldSession
	most         int           // descriptors that this process may have; set once in Dial
	mayBeShort   atomic.Bool   // see DescriptorsShort
	done         chan struct{} // closed when hear has returned
	yield        chan struct{} // closed when a successor waits

	Mu       sync.Mutex
	lost     bool                // guarded by mu: hear returns, or has
	serial   uint64              // guarded by mu; the last request's id
	calls    map[uint64]*call    // guarded by mu; those without an answer
	Children map[uint64]*child   // guarded by mu; those that run
	Marks    map[uint64]struct{} // guarded by mu; of the scopes that are there
}

// A call is a request under way.
type call struct {
	child    *child        // what a spawn makes: the hearer must know it before it can hear of its end
	answered chan struct{} // closed when the rest is set
	answer   wire.Message
	files    []int
}

var _ runtime.Keeper = (*Client)(nil)

// Dial takes conn and asks the keeper for all that there is.
func Dial(conn *os.File, log zerolog.Logger) (*Client, error) {
	l, err := wire.NewLink(conn)
	if err != nil {
		return nil, err
	}
	c := &Client{
		link: l, log: log, orphans: -1, done: make(chan struct{}), yield: make(chan struct{}),
		calls: map[uint64]*call{}, Children: map[uint64]*child{}, Marks: map[uint64]struct{}{},
	}
	_, c.most = descriptor.Count()
	if err := c.hello(); err != nil {
		l.Close()
		return nil, fmt.Errorf("hello of the keeper: %w", err)
	}
	go c.receiveAnswers() // ends with the connection; Close waits for it
	return c, nil
}

func (c *Client) hello() error {
	if err := c.link.Send(wire.Message{Version: wire.Version, Op: wire.OpHello}); err != nil {
		return err
	}
	m, files, theirs, err := c.link.ReceiveHello()
	switch {
	case err != nil:
		return err
	case theirs != wire.Version:
		return &wire.VersionError{Keeper: theirs, Gateway: wire.Version}
	case m.Lost:
		return unix.EMFILE
	case m.State == nil:
		descriptor.CloseAll(files)
		return cmp.Or(m.Fault.Err(), fs.ErrInvalid)
	}
	c.State = *m.State
	if !slices.Contains(runtime.TierNames, c.State.Tier) { // a keeper of a build that had tier "pidns", with sessions in it
		descriptor.CloseAll(files)
		return fmt.Errorf("keeper has isolation %s, which this version does not have: upgrade by a restart, without --isolation %s", c.State.Tier, c.State.Tier)
	}
	next := func() (fd int) {
		if len(files) == 0 {
			err = fs.ErrInvalid
			return -1
		}
		fd, files = files[0], files[1:]
		return fd
	}
	for _, name := range c.State.Listeners {
		c.files = append(c.files, os.NewFile(uintptr(next()), name))
	}
	if c.State.Orphans {
		c.orphans = next()
	}
	for _, gs := range c.State.Groups {
		g := &Group{Client: c, Id: gs.ID, scopes: map[int]*scope{}}
		in := runtime.HeldSession{
			ID: gs.ID, Group: g,
			Scopes: map[int]runtime.KeptScope{}, Children: map[int]runtime.KeptChild{}, Held: map[int]int{},
		}
		for _, cs := range gs.Scopes {
			list := -1
			if cs.Listed {
				list = next()
			}
			in.Scopes[cs.Number] = c.newScope(g, cs.Number, cs.Mark, list)
		}
		for _, cs := range gs.Children {
			k := &child{client: c, group: gs.ID, number: cs.Child, pid: cs.Pid, pidfd: -1, exited: make(chan struct{})}
			if cs.Pinned {
				k.pidfd = next()
			}
			if cs.Status != nil {
				k.setExited(cs.Status.Status())
			} else {
				c.Children[k.number] = k
			}
			in.Children[cs.Pid] = k
		}
		for _, number := range gs.Held {
			in.Held[number] = next()
		}
		c.heldSessions = append(c.heldSessions, in)
	}
	if err != nil || len(files) > 0 {
		return fmt.Errorf("%d descriptors too many: %w", len(files), fs.ErrInvalid) // and the gateway ends
	}
	return nil
}

// Done closes when the keeper is gone; there is nothing to go on with.
func (c *Client) Done() <-chan struct{} { return c.done }

// Yield closes when a successor is ready to take over. This gateway then leaves: it tells its clients, and exits without
// Bye and without Close, as no two may have the sessions for a moment.
func (c *Client) Yield() <-chan struct{} { return c.yield }

// Close ends the connection and nothing else.
func (c *Client) Close() error {
	c.link.Close()
	<-c.done
	return nil
}

// Ready tells the keeper that this gateway serves: from now on its death is a crash, and no refusal to start.
func (c *Client) Ready() error {
	_, _, err := c.Call(wire.Message{Op: wire.OpReady})
	return err
}

// Bye tells the keeper that this gateway means to end, with status 0, and everything with it.
func (c *Client) Bye() error {
	_, _, err := c.Call(wire.Message{Op: wire.OpBye})
	return err
}

// Remember has the keeper give text to the gateway that replaces this one, should this one die: Remembered. The keeper itself makes
// nothing of it.
func (c *Client) Remember(text []byte) error {
	_, _, err := c.Call(wire.Message{Op: wire.OpRemember, Text: text})
	return err
}

// Epoch is different for each start of the keeper.
func (c *Client) Epoch() string { return c.State.Epoch }

// Instance marks every process of the keeper's sessions: should it die, they can be found.
func (c *Client) Instance() runtime.Instance { return c.State.Instance }

// Generation is how many gateways this keeper had before.
func (c *Client) Generation() int { return c.State.Generation }

// Files are the keeper's listeners, under the names it gave them; they become the caller's.
func (c *Client) Files() []*os.File { return c.files }

// HeldSessions is what other gateways left; it becomes the caller's.
func (c *Client) HeldSessions() []runtime.HeldSession { return c.heldSessions }

// Numbers are the keeper's counts.
func (c *Client) Numbers() (wire.Numbers, error) {
	a, _, err := c.Call(wire.Message{Op: wire.OpNumbers})
	if err != nil || a.Numbers == nil {
		return wire.Numbers{}, err
	}
	return *a.Numbers, nil
}

func (c *Client) Isolation() (tier, why string) { return c.State.Tier, c.State.Why }

func (c *Client) Tiers() []runtime.TierReport { return c.State.Tiers }

// Gone is c.Done as a question.
func (c *Client) Gone() bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.lost
}

func (c *Client) Unenforceable() map[string]string { return maps.Clone(c.State.Unenforceable) }

func (c *Client) Dir() string { return "/proc/" + strconv.Itoa(c.State.Pid) + "/fd" }

func (c *Client) Group(id string) (runtime.KeptGroup, error) {
	if _, _, err := c.Call(wire.Message{Op: wire.OpGroup, Group: id}); err != nil {
		return nil, err
	}
	return &Group{Client: c, Id: id, scopes: map[int]*scope{}}, nil
}

// StartSession has the keeper do all of it by one request, and does what is ours meanwhile.
func (c *Client) StartSession(id string, f runtime.StartRequest) (d runtime.StartedSession, err error) {
	g := &Group{Client: c, Id: id, scopes: map[int]*scope{}}
	m := wire.Message{Op: wire.OpStartSession, Group: id}
	if f.Limits != (protocol.Limits{}) {
		m.Limits = &f.Limits
	}
	var given []int
	if m.Spawn, given, err = spawnOf(f.Shell); err != nil {
		return d, err
	}
	k := newChild(c, id)
	call, err := c.sendRequest(m, k, given)
	if err != nil {
		return d, err
	}
	other := f.Parallel(g)
	<-call.answered
	a, files, err := call.result()
	switch {
	case err != nil:
	case k.Pidfd() < 0:
		err = unix.EMFILE
	default:
		err = other
	}
	if err != nil {
		descriptor.CloseAll(files)
		if k.number != 0 || a.Lost { // it is there, but of no use to us
			_ = g.Close(context.Background())
			g.DropAll()
			_ = k.Close()
		}
		return d, err
	}
	list := -1
	if len(files) > 0 {
		list = files[0]
	}
	return runtime.StartedSession{Group: g, Scope: c.newScope(g, a.Scope, a.Mark, list), Child: k}, nil
}

// KillOrphans takes two round trips, as only we can say which sessions live.
func (c *Client) KillOrphans(live func(sessionID string) bool) int {
	a, _, err := c.Call(wire.Message{Op: wire.OpEscaped})
	if err != nil {
		return 0
	}
	a, _, _ = c.Call(wire.Message{Op: wire.OpOrphans, Sessions: slices.DeleteFunc(a.Sessions, live)})
	return a.Count
}

// DescriptorsShort goes by the numbers of descriptors that are made, here and in the keeper: a new one is the lowest that is free. Where
// such a number is high, or none was to be had, Short counts, by a system call here and a request to the keeper.
func (c *Client) DescriptorsShort() bool {
	if !c.mayBeShort.Load() {
		return false
	}
	n, err := c.Numbers()
	short := err == nil && descriptor.Short(n.Descriptors, n.MostDescriptors) || descriptor.Short(descriptor.Count())
	c.mayBeShort.Store(short)
	return short
}

// noteNumbers is told the numbers of descriptors that the keeper has made.
func (c *Client) noteNumbers(numbers []int) {
	for _, n := range numbers {
		if n < c.State.Descriptors && descriptor.Short(n, c.State.Descriptors) { // others are no descriptors, see Kind
			c.mayBeShort.Store(true)
		}
	}
}

// Call waits for the answer. The files sent are the link's, those returned the caller's.
func (c *Client) Call(m wire.Message, files ...int) (wire.Message, []int, error) {
	k, err := c.sendRequest(m, nil, files)
	if err != nil {
		return wire.Message{}, nil, err
	}
	<-k.answered
	crashpoint.Here("after an answer of the keeper")
	return k.result()
}

// sendRequest sends a request whose answer will be in the call.
func (c *Client) sendRequest(m wire.Message, spawned *child, files []int) (*call, error) {
	k := &call{child: spawned, answered: make(chan struct{})}
	c.Mu.Lock()
	if c.lost {
		c.Mu.Unlock()
		descriptor.CloseAll(files)
		return nil, wire.ErrLost
	}
	c.serial++
	m.ID = c.serial
	c.calls[m.ID] = k
	c.Mu.Unlock()
	if err := c.link.Send(m, files...); err != nil {
		c.Mu.Lock()
		delete(c.calls, m.ID)
		c.Mu.Unlock()
		return nil, err
	}
	return k, nil
}

// result is for when answered has closed.
func (k *call) result() (wire.Message, []int, error) {
	if k.answer.Lost {
		return k.answer, nil, unix.EMFILE
	}
	return k.answer, k.files, k.answer.Fault.Err()
}

// sendOneWay sends what has no answer.
func (c *Client) sendOneWay(m wire.Message) { _ = c.link.Send(m) }

// receiveAnswers takes answers and exits until the connection ends. Then it ends every call and every child: how those ended can
// no longer be known.
func (c *Client) receiveAnswers() {
	defer close(c.done)
	for {
		m, files, err := c.link.Receive()
		if err != nil {
			c.log.Debug().Err(err).Msg("connection to the keeper ended")
			break
		}
		c.handle(m, files)
	}
	c.link.Close()
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.lost = true
	for _, k := range c.calls {
		k.answer.Fault = &wire.Fault{Text: wire.ErrLost.Error(), Is: "lost"}
		close(k.answered)
	}
	clear(c.calls)
	for _, k := range c.Children {
		k.setExited(runtime.Status{Code: -1})
	}
	clear(c.Children)
	if c.orphans >= 0 {
		unix.Close(c.orphans)
	}
}

// handle is one message; the files are its own.
func (c *Client) handle(m wire.Message, files []int) {
	if m.Lost || m.Fault != nil && m.Fault.Errno == unix.EMFILE || len(files) > 0 && descriptor.Short(files[len(files)-1], c.most) {
		c.mayBeShort.Store(true)
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	switch k := c.calls[m.ID]; {
	case m.Op == wire.OpExit && m.Status != nil && c.Children[m.Child] != nil:
		c.Children[m.Child].setExited(m.Status.Status())
		delete(c.Children, m.Child)
	case m.Op == wire.OpAnswer && k != nil:
		delete(c.calls, m.ID)
		if k.child != nil && m.Fault == nil {
			k.child.number, k.child.pid = m.Child, m.Pid
			if len(files) > 0 {
				k.child.pidfd, files = files[0], files[1:]
			}
			c.Children[m.Child] = k.child
		}
		k.answer, k.files, files = m, files, nil
		close(k.answered)
	case m.Op == wire.OpYield:
		select {
		case <-c.yield:
		default:
			close(c.yield)
		}
	default:
		c.log.Error().Str("op", m.Op).Msg("message from the keeper that nobody waits for")
	}
	descriptor.CloseAll(files)
}

// isLiveMark: the mark of a scope that is there.
func (c *Client) isLiveMark(mark uint64) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	_, ok := c.Marks[mark]
	return ok
}
