// Package peer speaks the protocols of other servers that run commands and terminals for their clients, so that bench can measure them beside trl. The
// clients are ours; nothing of a peer is in here. Each file says after which source of its peer it was written.
package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Peer is a server that is already running. What it cannot do answers ErrCannot. The context of a call bounds all that comes of the call: a stream or a
// session is of no use after it.
type Peer interface {
	// Terminal opens an interactive shell on a terminal.
	Terminal(ctx context.Context) (Stream, error)
	// Shell starts a bash whose stdin and stdout are the stream. The peer knows nothing of commands in it.
	Shell(ctx context.Context) (Stream, error)
	// Session makes a session that keeps its directory and variables from one command to the next, and reports each command's end itself.
	Session(ctx context.Context) (Session, error)
	// Once runs a command in a shell of its own, without state.
	Once(ctx context.Context, command string) (Result, error)
	// Follow runs a command and returns the number of bytes of its output, read while it runs.
	Follow(ctx context.Context, command string, as Encoding) (n int, err error)
}

// ErrCannot says that a peer's protocol has no such thing.
var ErrCannot = errors.ErrUnsupported

// A Stream carries bytes to and from a program. One goroutine at a time uses it.
type Stream interface {
	Write(p []byte) error  // does not wait for the program
	Read() ([]byte, error) // the next output, valid until the next Read; io.EOF: the program has ended
	Close() error          // also ends the program
}

// A Session runs commands one after the other.
type Session interface {
	Run(command string) (Result, error)
	Close() error
}

// A Result is what a command did.
type Result struct {
	Output string // of stdout and, where the peer does not tell them apart, of stderr
	Code   int
}

// An Encoding is how output travels.
type Encoding int

// The encodings.
const (
	Binary Encoding = iota
	JSON
)

// kinds are the protocols that we speak.
var kinds = map[string]func(address string) Peer{
	"trl":   func(a string) Peer { return &trl{address: a} },
	"floor": func(a string) Peer { return &floor{address: a} },
	"ttyd":  func(a string) Peer { return &ttyd{address: a} },
	"gotty": func(a string) Peer { return &gotty{address: a} },
	"execd": func(a string) Peer { return &execd{address: a} },
	"envd":  func(a string) Peer { return &envd{address: a} },
	"wsep":  func(a string) Peer { return &wsep{address: a} },
	"cf":    func(a string) Peer { return &cf{address: a} },
}

// Kinds are the names that New knows.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// New makes the client of a server of a kind at an address, HOST:PORT. It connects to nothing.
func New(kind, address string) (Peer, error) {
	make := kinds[kind]
	if make == nil {
		return nil, fmt.Errorf("no client for %q: there are %s", kind, strings.Join(Kinds(), ", "))
	}
	return make(address), nil
}

// cannot is a peer that can do nothing. The others embed it.
type cannot struct{}

func (cannot) Terminal(context.Context) (Stream, error)              { return nil, ErrCannot }
func (cannot) Shell(context.Context) (Stream, error)                 { return nil, ErrCannot }
func (cannot) Session(context.Context) (Session, error)              { return nil, ErrCannot }
func (cannot) Once(context.Context, string) (Result, error)          { return Result{}, ErrCannot }
func (cannot) Follow(context.Context, string, Encoding) (int, error) { return 0, ErrCannot }

// The size of every terminal, and the environment of terminals whose peer lets the client choose it.
const (
	columns = 80
	rows    = 24
	term    = "xterm-256color"
)
