// Package wire is the socket between a keeper and its gateway: the messages, and a link that sends and receives them with descriptors, in
// order.
package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/descriptor"
	"trl/runtime/host"
	"trl/runtime/own"
)

// Version of the protocol. Keeper and gateway are the same binary, except during an upgrade in place. Any change of a message needs a new
// number.
const Version = 7

// Revision of Version: what keepers have learned since, without a change of what they knew. A keeper tells it in the Count of its hello, which every
// gateway of this Version accepts; 0 is that of the first builds. A gateway makes only requests that its keeper knows.
const (
	RevisionStart = 1 // OpStart
	Revision      = RevisionStart
)

const (
	MaxInline = 64 << 10 // of a packet; longer messages go in a memfd. A third of what a socket buffer can hold
	maxBody   = 64 << 20 // of a message in a memfd: a hello with 100,000 sessions
	MaxRights = 253      // the kernel's SCM_MAX_FD
	maxFiles  = 1 << 20  // of a message; the kernel's own limit on open descriptors
)

// The first byte of a packet is its kind. The descriptors of a message come in any number of parcels and with the message itself.
const (
	Inline = 'm' // a message follows
	InFile = 'b' // the message is in a memfd, the packet's first descriptor
	Parcel = 'f' // only descriptors, for the next message
)

// Requests. client.Client shows which fields each one has. Each has one answer unless it is marked.
const (
	OpHello              = "hello"   // the first, on both sides
	OpReady              = "ready"   // the gateway serves
	OpBye                = "bye"     // the gateway ends, and everything with it
	OpGroup              = "group"   // open one
	OpStartSession       = "found"   // one, with what a session begins with
	OpScope              = "cell"    // open one
	OpLimit              = "limit"   // a group
	OpGauge              = "gauge"   // of a group
	OpSpawn              = "spawn"   //
	OpStart              = "start"   // a scope; the first Count descriptors are held; its first process gets the others
	OpAddChild           = "adopt"   //
	OpAddForkedCopy      = "copy"    // Scope.AddForkedCopy
	OpMembersExcept      = "others"  //
	OpSignal             = "signal"  // to a child, some processes of a scope, a scope, or a group: the first that is named
	OpKill               = "kill"    // a scope
	OpRemove             = "remove"  // a scope
	OpMembers            = "members" // of a group
	OpClose              = "close"   // a group
	OpMakeChannels       = "make"    // what the shells of a private group open
	OpHold               = "hold"    //
	OpLend               = "lend"    // copies of held descriptors
	OpDrop               = "drop"    // no answer
	OpDropAll            = "dropall" // no answer
	OpWrite              = "write"   // to a file that is held; no answer
	OpPunch              = "punch"   // a hole into a file that is held; no answer
	OpReleaseConfinement = "vacate"  // no answer
	OpEnter              = "enter"   // may the group's user enter a directory?
	OpCwd                = "cwd"     // of one of the group's processes
	OpRelease            = "release" // a child: the gateway has heard of its end, or does not need to; no answer
	OpEscaped            = "escaped" // answers the sessions that orphans name
	OpOrphans            = "orphans" // kills the orphans of the named sessions
	OpNumbers            = "numbers" //
	OpRemember           = "recall"  // a text for the next gateway, if this one dies
	OpAnswer             = "answer"  // from the keeper
	OpExit               = "exit"    // from the keeper without a request: a child's end
	OpYield              = "yield"   // from the keeper without a request: a successor is ready; end and leave everything to it
)

var ops = []string{OpHello, OpReady, OpBye, OpGroup, OpStartSession, OpScope, OpLimit, OpGauge, OpSpawn, OpStart, OpAddChild, OpAddForkedCopy, OpMembersExcept, OpSignal, OpKill, OpRemove,
	OpMembers, OpClose, OpMakeChannels, OpHold, OpLend, OpDrop, OpDropAll, OpWrite, OpPunch, OpReleaseConfinement, OpEnter, OpCwd, OpRelease, OpEscaped, OpOrphans, OpNumbers, OpRemember, OpAnswer, OpExit, OpYield}

// Message is a request, its answer, or an event.
type Message struct {
	Version int    `json:"version,omitzero"` // of a hello
	Op      string `json:"op"`
	ID      uint64 `json:"id,omitzero"` // of a request, and of its answer
	Descriptors

	Group    string            `json:"group,omitzero"`
	Scope    int               `json:"cell,omitzero"`  // its number
	Mark     uint64            `json:"mark,omitzero"`  // the scope's
	Child    uint64            `json:"child,omitzero"` // its number, which no other child of the keeper ever has
	Pid      int               `json:"pid,omitzero"`
	Pids     []int             `json:"pids,omitzero"`
	Signal   int               `json:"signal,omitzero"`
	Spawn    *Spawn            `json:"spawn,omitzero"`
	Held     []int             `json:"held,omitzero"` // the keeper's numbers of held descriptors
	Kinds    []own.ChannelKind `json:"kinds,omitzero"`
	Range                      // in the held file
	Dir      []byte            `json:"dir,omitzero"` // bytes, as in Spawn
	Text     []byte            `json:"text,omitzero"`
	Sessions []string          `json:"sessions,omitzero"`
	Count    int               `json:"count,omitzero"`
	Done     bool              `json:"done,omitzero"`
	Status   *Status           `json:"status,omitzero"`
	State    *State            `json:"state,omitzero"`
	Numbers  *Numbers          `json:"numbers,omitzero"`
	Limits   *protocol.Limits  `json:"limits,omitzero"`
	Fault    *Fault            `json:"fault,omitzero"`
}

// Descriptors says what is known of the descriptors that come with a message.
type Descriptors struct {
	Files int  `json:"files,omitzero"` // how many come with it
	Lost  bool // the descriptors did not fit into our table, so none came; the receiver sets it
}

// Range is a part of a file.
type Range struct {
	From int64 `json:"from,omitzero"`
	To   int64 `json:"to,omitzero"`
}

// Spawn is a own.Spec. It has bytes, because paths and environments need not be UTF-8.
type Spawn struct {
	Path  []byte   `json:"path"`
	Argv  [][]byte `json:"argv"`
	Env   [][]byte `json:"env"`
	Dir   []byte   `json:"dir"`
	TTY   bool     `json:"tty,omitzero"`
	Slots []int    `json:"slots"` // for each descriptor of the child its index in the message's descriptors, without those of an OpStart that are held; -1: closed
}

// State is everything that a gateway needs to continue where another one ended. It comes with these descriptors, in this order: the
// listeners; the list of orphans; for each group the lists of its scopes, the pidfds of its children, and the held descriptors.
type State struct {
	Epoch         string            `json:"epoch"`
	Pid           int               `json:"pid"`
	Instance      host.Instance     `json:"instance"`
	Generation    int               `json:"generation"`
	Tier          string            `json:"tier"`
	Why           string            `json:"why"`
	Tiers         []own.TierReport  `json:"tiers"`
	Listeners     []string          `json:"listeners"`
	Orphans       bool              `json:"orphans"`     // the list of orphans comes with it
	Unenforceable map[string]string `json:"cannot"`      // Host.Unenforceable
	FIFODir       string            `json:"ports"`       // Host.FIFODir
	OtherUser     bool              `json:"foreign"`     // Host.RunsAsOtherUser
	Descriptors   int               `json:"descriptors"` // how many the keeper may open
	Groups        []GroupState      `json:"groups"`
}

type GroupState struct {
	ID       string       `json:"id"`
	Scopes   []ScopeState `json:"cells"`
	Children []ChildState `json:"children"`
	Held     []int        `json:"held"`
}

type ScopeState struct {
	Number int    `json:"number"`
	Mark   uint64 `json:"mark"`
	Listed bool   `json:"listed"` // a list comes with it
}

type ChildState struct {
	Child  uint64  `json:"child"`
	Pid    int     `json:"pid"`
	Status *Status `json:"status,omitzero"` // nil: it runs
	Pinned bool    `json:"pinned"`          // a pidfd comes with it
}

// Status is a own.Status.
type Status struct {
	Code   int   `json:"code"`
	Signal int   `json:"signal"`
	CPU    int64 `json:"cpu"` // ns
	MaxRSS int64 `json:"maxrss"`
}

func StatusOf(s own.Status) *Status {
	return &Status{s.Code, int(s.Signal), int64(s.CPU), s.MaxRSS}
}

func (s *Status) Status() own.Status {
	return own.Status{Code: s.Code, Signal: syscall.Signal(s.Signal), CPU: time.Duration(s.CPU), MaxRSS: s.MaxRSS}
}

// Numbers are the keeper's own counts since its start, for the gateway's metrics.
type Numbers struct {
	ZombiesReaped  uint64 `json:"zombies_reaped"`
	OrphansKilled  uint64 `json:"orphans_killed"`
	KillFailed     uint64 `json:"kill_failed"`
	GatewayCrashes uint64 `json:"gateway_crashes"` // ends that nobody asked for
	SignalsIgnored uint64 `json:"signals_ignored"` // sent from inside a session

	Descriptors     int `json:"descriptors,omitzero"` // open now, and the limit
	MostDescriptors int `json:"most_descriptors,omitzero"`
}

// VersionError is the error of both sides if keeper and gateway have different versions of the protocol.
type VersionError struct{ Keeper, Gateway int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("keeper speaks protocol %d, gateway %d: restart the whole of trl", e.Keeper, e.Gateway)
}

// ErrLost is the error of every call after the connection has ended: the keeper is dead, and with it every session.
var ErrLost = own.ErrKeeperGone

// Fault is an error that crosses the socket.
type Fault struct {
	Text  string        `json:"text"`
	Errno syscall.Errno `json:"errno,omitzero"`
	Is    string        `json:"is,omitzero"`    // a key of causes
	Limit string        `json:"limit,omitzero"` // of a own.LimitError, with Why
	Why   string        `json:"why,omitzero"`
	Op    string        `json:"op,omitzero"`   // of a fs.PathError, with Path
	Path  []byte        `json:"path,omitzero"` // bytes, as in Spawn
}

// causes are the errors that callers test with errors.Is.
var causes = map[string]error{
	"closed": fs.ErrClosed, "lost": ErrLost, "exist": fs.ErrExist, "invalid": fs.ErrInvalid, "process done": os.ErrProcessDone,
}

func FaultOf(err error) *Fault {
	if err == nil {
		return nil
	}
	f := &Fault{Text: err.Error()}
	var limit *own.LimitError
	if errors.As(err, &limit) {
		f.Limit, f.Why = limit.Limit, limit.Why
		return f
	}
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		f.Op, f.Path = path.Op, []byte(path.Path)
	}
	if !errors.As(err, &f.Errno) {
		for name, cause := range causes {
			if errors.Is(err, cause) {
				f.Is = name
			}
		}
	}
	return f
}

func (f *Fault) Err() error {
	if f == nil {
		return nil
	}
	e := &remoteError{f.Text, causes[f.Is]}
	switch {
	case f.Limit != "":
		e.cause = &own.LimitError{Limit: f.Limit, Why: f.Why}
	case f.Errno != 0:
		e.cause = f.Errno
	}
	if f.Op != "" && e.cause != nil {
		e.cause = &fs.PathError{Op: f.Op, Path: string(f.Path), Err: e.cause}
	}
	return e
}

type remoteError struct {
	text  string
	cause error // may be nil
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }

// decode is strict: a field that we do not know comes from another version, or from a foreign sender.
func decode(body []byte) (m Message, err error) {
	if err := json.Unmarshal(body, &m, json.RejectUnknownMembers(true)); err != nil {
		return Message{}, fmt.Errorf("message: %w", err)
	}
	if !slices.Contains(ops, m.Op) || m.Files < 0 || m.Files > maxFiles {
		return Message{}, fmt.Errorf("message %q with %d descriptors: %w", m.Op, m.Files, fs.ErrInvalid)
	}
	return m, nil
}

// VersionOf reads the version of a hello, which every version has in the same place.
func VersionOf(body []byte) int {
	var hello struct {
		Version int `json:"version"`
	}
	_ = json.Unmarshal(body, &hello)
	return hello.Version
}

// packet is sent as a whole or not at all.
type packet struct {
	text  []byte
	files []int
	after []func() // called when it is sent, or cannot be sent any more
}

func (p packet) Finish() {
	for _, f := range p.after {
		f()
	}
}

// Pack makes packets of a message. The packets become the owners of own; if Pack fails, it closes own.
func Pack(m Message, files, own []int) (packets []packet, err error) {
	m.Files = len(files)
	text := bytes.NewBuffer([]byte{Inline})
	if err := json.MarshalWrite(text, &m, jsontext.AllowInvalidUTF8(true)); err != nil {
		descriptor.CloseAll(own)
		return nil, fmt.Errorf("message: %w", err)
	}
	last := packet{text: text.Bytes()}
	room := MaxRights
	if text.Len() > MaxInline {
		body, err := SealedMemfd(last.text[1:])
		if err != nil {
			descriptor.CloseAll(own)
			return nil, fmt.Errorf("long message: %w", err)
		}
		last = packet{text: []byte{InFile}, files: []int{body}}
		own = append(slices.Clip(own), body)
		room--
	}
	for len(files) > room {
		n := min(len(files), MaxRights)
		packets = append(packets, packet{text: []byte{Parcel}, files: files[:n:n]})
		files = files[n:]
	}
	last.files = append(last.files, files...)
	last.after = []func(){func() { descriptor.CloseAll(own) }}
	return append(packets, last), nil
}

// sealFlags allow only reading.
const sealFlags = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// SealedMemfd returns a sealed memfd that contains body.
func SealedMemfd(body []byte) (fd int, err error) {
	if len(body) > maxBody {
		return -1, unix.EMSGSIZE
	}
	fd, err = unix.MemfdCreate("message", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	for n := 0; n < len(body) && err == nil; {
		var k int
		if k, err = unix.Write(fd, body[n:]); err == unix.EINTR {
			err = nil
		}
		n += max(k, 0)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealFlags)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ReadSealed reads a memfd that SealedMemfd made. The seals prove that it is memory, which can neither block us nor change.
func ReadSealed(fd int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("message in a file: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if seals&sealFlags != sealFlags || st.Size > maxBody {
		return nil, fmt.Errorf("message of %d bytes, seals %#x: %w", st.Size, seals, fs.ErrInvalid)
	}
	body := make([]byte, st.Size)
	for n := 0; n < len(body); {
		k, err := unix.Pread(fd, body[n:], int64(n))
		if err != nil && err != unix.EINTR {
			return nil, os.NewSyscallError("read of a message", err)
		}
		n += max(k, 0)
	}
	return body, nil
}
