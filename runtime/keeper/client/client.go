// Package client is the gateway's end of the keeper's socket. Dial returns a own.Keeper, whose groups, scopes and children live in the
// keeper.
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
	"trl/runtime/crashpoint"
	"trl/runtime/descriptor"
	"trl/runtime/host"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

// Started says whether a keeper started this process. Call it before GatewaySocket, which removes the variable.
func Started() bool { _, ok := os.LookupEnv(wire.FDVar); return ok }

// RestoreEnviron sets the environment that the keeper passed to this process; without a keeper it does nothing. It must run once, before
// anything else.
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

// Remembered returns the text that an earlier gateway sent last with Client.Remember. ok: this gateway replaces one that died. A gateway
// that takes over from a running one gets no text: if it cannot start without, it must not take over. Call it once, after RestoreEnviron.
func Remembered() (text []byte, ok bool) {
	encoded, ok := os.LookupEnv(wire.RememberedVar)
	os.Unsetenv(wire.RememberedVar)
	if !ok || !Started() {
		return nil, false
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	return text, err == nil
}

// GatewaySocket returns the socket to the keeper that started this gateway; nil: no keeper started this process. Children do not inherit
// the socket.
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

// Client is a own.Keeper across the socket. When the keeper is gone, Done closes and every call returns ErrLost at once. The owner ends
// it with Bye, which ends everything, or with Close, which leaves everything to the next gateway.
type Client struct {
	link         *wire.Link
	log          zerolog.Logger
	state        wire.State // set once in Dial
	orphans      int        // fd of the keeper's list, see host.EmptyCheck; -1: none. Closed by receiveAnswers
	files        []*os.File
	heldSessions []own.HeldSession
	revision     int           // of the keeper, see wire.Revision; set once in Dial
	most         int           // descriptors that this process may open; set once in Dial
	mayBeShort   atomic.Bool   // see DescriptorsShort
	done         chan struct{} // closed when receiveAnswers has returned
	yield        chan struct{} // closed when a successor waits

	mu       sync.Mutex
	lost     bool                // guarded by mu: receiveAnswers is returning, or has returned
	serial   uint64              // guarded by mu; the last request's id
	calls    map[uint64]*call    // guarded by mu; the calls without an answer
	children map[uint64]*child   // guarded by mu; the running children
	marks    map[uint64]struct{} // guarded by mu; the marks of the existing scopes
}

// call is a request without an answer yet.
type call struct {
	child    *child        // the child that a spawn makes: receiveAnswers must know it before its exit can arrive
	answered chan struct{} // closed when answer and files are set
	answer   wire.Message
	files    []int
}

var _ own.Keeper = (*Client)(nil)

// Dial takes over conn and asks the keeper for everything that it holds.
func Dial(conn *os.File, log zerolog.Logger) (*Client, error) {
	l, err := wire.NewLink(conn)
	if err != nil {
		return nil, err
	}
	c := &Client{
		link: l, log: log, orphans: -1, done: make(chan struct{}), yield: make(chan struct{}),
		calls: map[uint64]*call{}, children: map[uint64]*child{}, marks: map[uint64]struct{}{},
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
	c.state, c.revision = *m.State, m.Count
	if !slices.Contains(host.TierNames, c.state.Tier) { // the keeper comes from a build that had tier "pidns", and has sessions in it
		descriptor.CloseAll(files)
		return fmt.Errorf("keeper has isolation %s, which this version does not have: upgrade by a restart, without --isolation %s", c.state.Tier, c.state.Tier)
	}
	next := func() (fd int) {
		if len(files) == 0 {
			err = fs.ErrInvalid
			return -1
		}
		fd, files = files[0], files[1:]
		return fd
	}
	for _, name := range c.state.Listeners {
		c.files = append(c.files, os.NewFile(uintptr(next()), name))
	}
	if c.state.Orphans {
		c.orphans = next()
	}
	for _, gs := range c.state.Groups {
		g := &group{client: c, id: gs.ID, scopes: map[int]*scope{}}
		in := own.HeldSession{
			ID: gs.ID, Group: g,
			Scopes: map[int]own.KeptScope{}, Children: map[int]own.KeptChild{}, Held: map[int]int{},
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
				c.children[k.number] = k
			}
			in.Children[cs.Pid] = k
		}
		for _, number := range gs.Held {
			in.Held[number] = next()
		}
		c.heldSessions = append(c.heldSessions, in)
	}
	if err != nil || len(files) > 0 {
		return fmt.Errorf("%d descriptors too many: %w", len(files), fs.ErrInvalid) // the gateway then ends
	}
	return nil
}

// Done closes when the keeper is gone. Nothing can work without it.
func (c *Client) Done() <-chan struct{} { return c.done }

// Yield closes when a successor is ready to take over. This gateway then tells its clients and exits, without Bye and without Close,
// because no two gateways may have the sessions at the same time.
func (c *Client) Yield() <-chan struct{} { return c.yield }

// Close ends only the connection.
func (c *Client) Close() error {
	c.link.Close()
	<-c.done
	return nil
}

// Ready tells the keeper that this gateway serves: from now on its death is a crash, not a failed start.
func (c *Client) Ready() error {
	_, _, err := c.Call(wire.Message{Op: wire.OpReady})
	return err
}

// Bye tells the keeper that this gateway will exit with status 0, and that everything must end with it. It returns when the keeper has heard that, or when
// ctx is done: the keeper reads it when it comes to it, and one that ends itself need not know.
func (c *Client) Bye(ctx context.Context) error {
	k, err := c.sendRequest(wire.Message{Op: wire.OpBye}, nil, nil)
	if err != nil {
		return err
	}
	select {
	case <-k.answered:
		_, _, err := k.result()
		return err
	case <-ctx.Done():
		return nil
	}
}

// Remember sends the keeper a text for the gateway that replaces this one if this one dies. That gateway gets it from Remembered. The
// keeper does not interpret it.
func (c *Client) Remember(text []byte) error {
	_, _, err := c.Call(wire.Message{Op: wire.OpRemember, Text: text})
	return err
}

// Epoch differs for each start of the keeper.
func (c *Client) Epoch() string { return c.state.Epoch }

// Instance marks every process of the keeper's sessions, so that they can be found after the keeper's death.
func (c *Client) Instance() host.Instance { return c.state.Instance }

// Generation is the number of gateways that this keeper had before.
func (c *Client) Generation() int { return c.state.Generation }

// Files are the keeper's listeners, with the names that the keeper gave them. The caller becomes their owner.
func (c *Client) Files() []*os.File { return c.files }

// HeldSessions are the sessions that earlier gateways left. The caller becomes their owner.
func (c *Client) HeldSessions() []own.HeldSession { return c.heldSessions }

// Numbers are the keeper's counts.
func (c *Client) Numbers() (wire.Numbers, error) {
	a, _, err := c.Call(wire.Message{Op: wire.OpNumbers})
	if err != nil || a.Numbers == nil {
		return wire.Numbers{}, err
	}
	return *a.Numbers, nil
}

func (c *Client) Isolation() (tier, why string) { return c.state.Tier, c.state.Why }

func (c *Client) Tiers() []own.TierReport { return c.state.Tiers }

// Gone says whether Done has closed.
func (c *Client) Gone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

func (c *Client) Unenforceable() map[string]string { return maps.Clone(c.state.Unenforceable) }

func (c *Client) Dir() string { return "/proc/" + strconv.Itoa(c.state.Pid) + "/fd" }

func (c *Client) Group(id string) (own.KeptGroup, error) {
	if _, _, err := c.Call(wire.Message{Op: wire.OpGroup, Group: id}); err != nil {
		return nil, err
	}
	return &group{client: c, id: id, scopes: map[int]*scope{}}, nil
}

// StartSession has the keeper do everything in one request. f.Parallel runs meanwhile.
func (c *Client) StartSession(id string, f own.StartRequest) (d own.StartedSession, err error) {
	g := &group{client: c, id: id, scopes: map[int]*scope{}}
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
		if k.number != 0 || a.Lost { // the keeper has made the group, but we cannot use it
			_ = g.Close(context.Background())
			g.DropAll()
			_ = k.Close()
		}
		return d, err
	}
	return own.StartedSession{Group: g, Scope: g.scopeOf(a, files), Child: k}, nil
}

// KillOrphans makes two requests, because only the gateway knows which sessions live.
func (c *Client) KillOrphans(live func(sessionID string) bool) int {
	a, _, err := c.Call(wire.Message{Op: wire.OpEscaped})
	if err != nil {
		return 0
	}
	a, _, _ = c.Call(wire.Message{Op: wire.OpOrphans, Sessions: slices.DeleteFunc(a.Sessions, live)})
	return a.Count
}

// DescriptorsShort says whether gateway or keeper have few free descriptors. New descriptors get the lowest free number, so a high number,
// or a failure to get one, is the cheap sign. Only after such a sign DescriptorsShort counts, with a system call here and a request to the
// keeper.
func (c *Client) DescriptorsShort() bool {
	if !c.mayBeShort.Load() {
		return false
	}
	n, err := c.Numbers()
	short := err == nil && descriptor.Short(n.Descriptors, n.MostDescriptors) || descriptor.Short(descriptor.Count())
	c.mayBeShort.Store(short)
	return short
}

// noteNumbers notes the numbers of descriptors that the keeper has just made.
func (c *Client) noteNumbers(numbers []int) {
	for _, n := range numbers {
		if n < c.state.Descriptors && descriptor.Short(n, c.state.Descriptors) { // larger numbers are no descriptors, see own.ChannelKind
			c.mayBeShort.Store(true)
		}
	}
}

// Call sends a request and waits for its answer. The link becomes the owner of files; the caller becomes the owner of the returned files.
func (c *Client) Call(m wire.Message, files ...int) (wire.Message, []int, error) {
	k, err := c.sendRequest(m, nil, files)
	if err != nil {
		return wire.Message{}, nil, err
	}
	<-k.answered
	crashpoint.Here("after an answer of the keeper")
	return k.result()
}

// sendRequest sends a request. The returned call will have the answer.
func (c *Client) sendRequest(m wire.Message, spawned *child, files []int) (*call, error) {
	k := &call{child: spawned, answered: make(chan struct{})}
	c.mu.Lock()
	if c.lost {
		c.mu.Unlock()
		descriptor.CloseAll(files)
		return nil, wire.ErrLost
	}
	c.serial++
	m.ID = c.serial
	c.calls[m.ID] = k
	c.mu.Unlock()
	if err := c.link.Send(m, files...); err != nil {
		c.mu.Lock()
		delete(c.calls, m.ID)
		c.mu.Unlock()
		return nil, err
	}
	return k, nil
}

// result returns the answer. Call it after answered has closed.
func (k *call) result() (wire.Message, []int, error) {
	if k.answer.Lost {
		return k.answer, nil, unix.EMFILE
	}
	return k.answer, k.files, k.answer.Fault.Err()
}

// sendOneWay sends a message that has no answer.
func (c *Client) sendOneWay(m wire.Message) { _ = c.link.Send(m) }

// receiveAnswers receives answers and exits until the connection ends. Then it ends every call and every child, because their results can
// no longer arrive.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	for _, k := range c.calls {
		k.answer.Fault = &wire.Fault{Text: wire.ErrLost.Error(), Is: "lost"}
		close(k.answered)
	}
	clear(c.calls)
	for _, k := range c.children {
		k.setExited(own.Status{Code: -1})
	}
	clear(c.children)
	if c.orphans >= 0 {
		unix.Close(c.orphans)
	}
}

// handle handles one message and becomes the owner of its files.
func (c *Client) handle(m wire.Message, files []int) {
	if m.Lost || m.Fault != nil && m.Fault.Errno == unix.EMFILE || len(files) > 0 && descriptor.Short(files[len(files)-1], c.most) {
		c.mayBeShort.Store(true)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch k := c.calls[m.ID]; {
	case m.Op == wire.OpExit && m.Status != nil && c.children[m.Child] != nil:
		c.children[m.Child].setExited(m.Status.Status())
		delete(c.children, m.Child)
	case m.Op == wire.OpAnswer && k != nil:
		delete(c.calls, m.ID)
		if k.child != nil && m.Fault == nil {
			k.child.number, k.child.pid = m.Child, m.Pid
			if len(files) > 0 {
				k.child.pidfd, files = files[0], files[1:]
			}
			c.children[m.Child] = k.child
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
		c.log.Error().Str("op", m.Op).Msg("message from the keeper without a receiver")
	}
	descriptor.CloseAll(files)
}

// Tracked returns how many running children and how many scopes the client knows of. Tests of the keeper use it.
func (c *Client) Tracked() (children, scopes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.children), len(c.marks)
}

// isLiveMark says whether a scope with this mark exists.
func (c *Client) isLiveMark(mark uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.marks[mark]
	return ok
}
