// Package entry has the entries that a session writes into its session log, and reads them. Gateways of other versions read them, too.
package entry

import (
	"io"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/pool/clock"
	"trl/pool/requestkey"
	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/saved"
	"trl/runtime/stream"
)

// Entry is one line of a session log: one of its fields is set, or Exec and Begun.
type Entry struct {
	Session  *Session     `json:"session,omitzero"`
	Name     *string      `json:"name,omitzero"`
	Settings *Settings    `json:"settings,omitzero"`
	Shell    *saved.Shell `json:"shell,omitzero"`
	Exec     *Exec        `json:"exec,omitzero"`
	Begun    *Begun       `json:"begun,omitzero"`
	Cancel   *Cancel      `json:"cancel,omitzero"`
	Done     *Done        `json:"done,omitzero"`
	Process  *Process     `json:"process,omitzero"`
	Expired  string       `json:"expired,omitzero"` // the id of a process that is being ended for its time
	Exited   *Exited      `json:"exited,omitzero"`
	Terminal *Terminal    `json:"terminal,omitzero"`
	Closed   *Closed      `json:"closed,omitzero"`
	Forgot   string       `json:"forgot,omitzero"` // the id of an exec, a process or a terminal that is no longer kept
	Share    *Share       `json:"share,omitzero"`
	Unshared string       `json:"unshared,omitzero"` // the id of a share that has ended
	Unwanted string       `json:"unwanted,omitzero"` // the id of a recording that was deleted while it was being made
	Revived  *Revived     `json:"revived,omitzero"`  // until a command is done or a reset begins
	Reset    bool         `json:"reset,omitzero"`    // begins; the next shell ends it
	Ending   *Ending      `json:"ending,omitzero"`
	Over     *Over        `json:"over,omitzero"`
	Moved    *Moved       `json:"moved,omitzero"`   // to another node; the session goes on there
	Arrived  *Arrived     `json:"arrived,omitzero"` // from another node; the last one counts
}

// allowInvalidUTF8 is for directories, whose names may be any bytes.
var allowInvalidUTF8 = jsontext.AllowInvalidUTF8(true)

// Encode writes the entry as JSON.
func (e *Entry) Encode(w io.Writer) error { return json.MarshalWrite(w, e, allowInvalidUTF8) }

// Duration is a time.Duration that is written as its nanoseconds.
type Duration time.Duration

// Session is what the session was created with.
type Session struct {
	Tag          string            `json:"tag"`
	Owner        string            `json:"owner"`
	Name         string            `json:"name,omitzero"`
	Created      time.Time         `json:"created"`
	Uptime       clock.Uptime      `json:"uptime,omitzero"` // at Created
	Shell        string            `json:"shell"`
	Dir          string            `json:"dir"`
	Env          protocol.Env      `json:"env,omitzero"`
	Labels       map[string]string `json:"labels,omitzero"`
	Timeout      Duration          `json:"timeout"`
	Idle         Duration          `json:"idle"`
	Restore      bool              `json:"restore"`
	Limits       protocol.Limits   `json:"limits,omitzero"`
	EndsWithConn bool              `json:"tethered"`
	Record       string            `json:"record,omitzero"`
	Where        map[string]string `json:"where,omitzero"`
	Commands     int64             `json:"commands"` // begun before this was written
	Key          Key               `json:"key,omitzero"`

	Earlier []string `json:"earlier,omitzero"` // the marks (see ids.MarkOf) of work from the nodes on which the session was before

	Last *protocol.LastExec `json:"last,omitzero"` // these two before this was written
	Cwd  string             `json:"cwd,omitzero"`
}

// Settings is what session.update changes: all of it, in place of what Session has.
type Settings struct {
	Labels  map[string]string `json:"labels,omitzero"`
	Timeout Duration          `json:"timeout"`
	Idle    Duration          `json:"idle"`
}

// Key is a request_key and what the request was.
type Key struct {
	Key     string `json:"key"`
	Params  []byte `json:"params"`
	Default bool   `json:"default,omitzero"` // it named no session
	Guest   string `json:"guest,omitzero"`   // the share that it came by
}

// KeyOf returns the entry of a request_key; it is empty for a request without one.
func KeyOf(r requestkey.Ref, params *requestkey.Fingerprint) Key {
	if r == (requestkey.Ref{}) {
		return Key{}
	}
	return Key{Key: r.Key, Params: params[:], Default: r.NamesNoSession, Guest: r.Guest}
}

// Work is what Exec, Process and Terminal have in common.
type Work struct {
	Stream string `json:"stream"`
	Text   string `json:"text"`
	Key    Key    `json:"key,omitzero"`
}

// Child is what Process and Terminal have in common.
type Child struct {
	Work
	Started time.Time    `json:"started"`
	Uptime  clock.Uptime `json:"uptime,omitzero"` // at Started
}

// Exec is a command that is to run.
type Exec struct {
	Work
	Clean     bool              `json:"clean,omitzero"`
	Keeps     bool              `json:"keeps,omitzero"`
	Most      int               `json:"most"`
	Timeout   Duration          `json:"timeout"`
	NoOutput  Duration          `json:"no_output"`
	Grace     Duration          `json:"grace"`
	Env       protocol.Env      `json:"env,omitzero"`
	Dir       string            `json:"dir,omitzero"`
	OpenStdin bool              `json:"open_stdin,omitzero"`
	Stdin     []stream.HeldFile `json:"stdin,omitzero"`
	Queued    time.Time         `json:"queued"`
	Recording string            `json:"recording,omitzero"`
	Guest     string            `json:"guest,omitzero"` // the share that it came by
}

// Begun says that a command is about to be given to the shell.
type Begun struct {
	ID      string        `json:"id"`
	At      time.Time     `json:"at"`
	Uptime  clock.Uptime  `json:"uptime,omitzero"`
	Command saved.Command `json:"command"`
}

// Cancel says that a command is being cancelled.
type Cancel struct {
	ID     string       `json:"id"`
	Grace  Duration     `json:"grace"`
	At     time.Time    `json:"at"`
	Uptime clock.Uptime `json:"uptime,omitzero"`
}

// Done is how a command ended.
type Done struct {
	ID      string             `json:"id"`
	Exit    protocol.ExecExit  `json:"exit"`
	Failure *protocol.Error    `json:"failure,omitzero"`
	At      time.Time          `json:"at"`
	Uptime  clock.Uptime       `json:"uptime,omitzero"`
	End     int64              `json:"end"`
	Died    bool               `json:"died,omitzero"`
	Span    journal.Span       `json:"span"`
	Pipes   *stream.SavedPipes `json:"lane,omitzero"` // nil: it never had one
}

// Process is a process that is about to start.
type Process struct {
	Child
	Name    string        `json:"name,omitzero"`
	Timeout Duration      `json:"timeout"`
	Process saved.Process `json:"process"`
}

// ChildEnd is what Exited and Closed have in common.
type ChildEnd struct {
	ID     string         `json:"id"`
	Code   int            `json:"code"`
	Signal syscall.Signal `json:"signal,omitzero"`
	At     time.Time      `json:"at"`
	Span   journal.Span   `json:"span"`
}

// Exited is how a process ended.
type Exited struct {
	ChildEnd
	TimedOut bool  `json:"timed_out,omitzero"`
	End      int64 `json:"end"`
}

// Terminal is a terminal that is about to start.
type Terminal struct {
	Child
	Nonce     string         `json:"nonce"`
	Terminal  saved.Terminal `json:"terminal"`
	Recording string         `json:"recording,omitzero"`
}

// Closed is how a terminal ended.
type Closed struct {
	ChildEnd
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Revived says that the shell was put back while no command ran, and what that lost.
type Revived struct {
	Lost []string `json:"lost,omitzero"`
}

// Ending says that the session's end has begun.
type Ending struct {
	Reason protocol.Reason `json:"reason"`
	Grace  Duration        `json:"grace"`
}

// Over says that the session has ended.
type Over struct {
	At   time.Time `json:"at"`
	Dir  string    `json:"dir"`
	Envs int       `json:"envs"`
}

// Moved says that the session has moved to another node.
type Moved struct {
	Move  string   `json:"move"`
	To    string   `json:"to"`             // that node's epoch
	Lost  []string `json:"lost,omitzero"`  // of the shell's state
	Ended bool     `json:"ended,omitzero"` // that node has said that it can be found there
}

// Arrived says how far the move of a session to this node has come.
type Arrived struct {
	Move string `json:"move"`
	From string `json:"from"`          // the epoch of the node where it was
	Ours bool   `json:"ours,omitzero"` // that node has given it up; before, it may have kept it
	Told bool   `json:"told,omitzero"` // that node knows that it can be found here
}

// Share is a share in the session log.
type Share struct {
	ID           string     `json:"id"`
	Hash         []byte     `json:"hash"`
	Term         string     `json:"term,omitzero"`
	Control      bool       `json:"control,omitzero"`
	Name         string     `json:"name,omitzero"`
	CredentialID string     `json:"maker,omitzero"`
	Created      time.Time  `json:"created"`
	Expires      time.Time  `json:"expires"`
	Boot         clock.Boot `json:"boot,omitzero"` // at Expires; 0: the credential that it was made with expires then, by the wall clock
}

// RareExit is what few commands have.
type RareExit struct {
	Signal     string          `json:"signal,omitzero"`
	Lost       []string        `json:"lost,omitzero"`
	Background []int           `json:"background,omitzero"`
	LimitHit   string          `json:"limit_hit,omitzero"`
	Error      *protocol.Error `json:"error,omitzero"`
	Failure    *protocol.Error `json:"failure,omitzero"`
	Recording  string          `json:"recording,omitzero"`
}

// IsEmpty reports whether there is nothing of that.
func (r *RareExit) IsEmpty() bool {
	return r.Signal == "" && r.Lost == nil && r.Background == nil && r.LimitHit == "" && r.Error == nil && r.Failure == nil && r.Recording == ""
}

// Output is where the output of an ended command is.
type Output struct {
	Span  journal.Span       `json:"span"`
	Pipes *stream.SavedPipes `json:"lane,omitzero"`
}
