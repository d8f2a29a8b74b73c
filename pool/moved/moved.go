// Package moved has what a session consists of while it moves from one node to another.
package moved

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"io"
	"time"

	"trl/pool/clock"
	"trl/pool/entry"
	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/sessionlog"
	"trl/runtime/stream"
)

// Code is the code of the error for requests about a session that is not here any more. Only nodes get it from nodes: Epoch says where the session is.
const Code protocol.Code = "SESSION_MOVED"

// MaxOutput is how many bytes of ended work's output go along with a session. The newest go first.
const MaxOutput = 16 << 20

// Session is an idle session without processes, terminals and jobs.
type Session struct {
	ID      string         `json:"id"`
	Uptime  clock.Uptime   `json:"uptime"` // of the node that gets it, when it asked
	Session *entry.Session `json:"session"`
	Entries [][]byte       `json:"entries"` // ended work, as the session log has it; times are those of the target's clock
	Outputs []Output       `json:"outputs"`
	State   []byte         `json:"state"` // of the shell, see shell.State; empty: that of a fresh shell
	Lost    []string       `json:"lost"`  // parts of the state that are missing
	Revived *entry.Revived `json:"revived"`
	Idle    entry.Duration `json:"idle"` // for how long nothing has happened
}

// Output is the packed output of one command, process or terminal.
type Output struct {
	Key  sessionlog.Key `json:"key"`
	Body []byte         `json:"body"`
}

// Packer adds ended work to a Session, and its output while there is room. The work is given to it from the newest on.
type Packer struct {
	Ahead clock.Uptime // how much greater the uptime of the other node is

	to      *Session
	archive map[sessionlog.Key]*sessionlog.Archived
	logs    map[stream.HeldFile][]stream.HeldFile // what the logs are called on the other node
	bytes   int64
}

// NewPacker returns a Packer for the output in the archive of a session log.
func NewPacker(x *Session, log *sessionlog.Log) *Packer {
	p := &Packer{to: x, Ahead: x.Uptime - clock.UptimeAt(time.Now()), archive: map[sessionlog.Key]*sessionlog.Archived{}, logs: map[stream.HeldFile][]stream.HeldFile{}}
	for _, k := range log.Archived() {
		p.archive[k.Key] = k
	}
	return p
}

// Exec adds a command. j is nil if nothing of its output is kept.
func (p *Packer) Exec(x entry.EndedExec, j *journal.Journal, from *stream.SavedPipes) {
	x.Shift(p.Ahead)
	var at *entry.Output
	if j != nil && from != nil {
		if log := p.output(from.Log, j.Span()); log != nil {
			at = &entry.Output{Span: j.Span(), Pipes: &stream.SavedPipes{Log: log}}
		}
	}
	p.to.Entries = append(p.to.Entries, x.Encode(at))
}

// Tombstone adds a process or a terminal of which only the request key is remembered.
func (p *Packer) Tombstone(x entry.ChildTombstone) {
	x.Shift(p.Ahead)
	p.to.Entries = append(p.to.Entries, x.Encode())
}

// Process adds a process. Nothing of it but its output outlives the move.
func (p *Packer) Process(x *entry.Process, j *journal.Journal, end entry.Entry) error {
	q := &x.Process
	q.Pipes = stream.SavedPipes{Log: p.output(q.Pipes.Log, j.Span())}
	q.Stdin, q.Held, q.Scope, q.Gate, q.Status = nil, nil, 0, 0, 0
	x.Uptime += p.Ahead
	return p.add(entry.Entry{Process: x}, end)
}

// Terminal is Process for a terminal.
func (p *Packer) Terminal(x *entry.Terminal, j *journal.Journal, end entry.Entry) error {
	q := &x.Terminal
	q.PTY = stream.SavedPTY{Log: p.output(q.PTY.Log, j.Span())}
	q.Stdin, q.Held, q.Scope, q.Gate, q.Scratch = nil, nil, 0, 0, ""
	x.Uptime += p.Ahead
	return p.add(entry.Entry{Terminal: x}, end)
}

// add adds the two entries of a process or a terminal.
func (p *Packer) add(begin, end entry.Entry) error {
	for _, e := range []entry.Entry{end, begin} { // from the newest on
		var text bytes.Buffer
		if err := e.Encode(&text); err != nil {
			return err
		}
		p.to.Entries = append(p.to.Entries, text.Bytes())
	}
	return nil
}

// output adds the output of a span of a log, and returns what the log is called on the other node, where its own name may be that of another log. It
// returns nil if the output does not go along.
func (p *Packer) output(log []stream.HeldFile, span journal.Span) []stream.HeldFile {
	key, ok := stream.ArchiveKey(log, span)
	k := p.archive[key]
	if !ok || k == nil || span.Empty() || p.bytes+k.Size() > MaxOutput && p.bytes > 0 {
		return nil
	}
	body := make([]byte, k.Size())
	if _, err := k.ReadAt(body, 0); err != nil {
		return nil
	}
	p.bytes += k.Size()
	there := p.logs[log[0]]
	if there == nil {
		there = newLogName()
		p.logs[log[0]] = there
	}
	key, _ = stream.ArchiveKey(there, span)
	p.to.Outputs = append(p.to.Outputs, Output{key, body})
	return there
}

// newLogName returns the name of a log that no keeper holds.
func newLogName() []stream.HeldFile {
	var b [8]byte
	rand.Read(b[:]) // never fails since Go 1.24
	f := stream.HeldFile{Number: -1, Inode: binary.LittleEndian.Uint64(b[:])}
	return []stream.HeldFile{f, f, f}
}

// Write writes the ended work and its output into the session's log on this node. read is called with each entry.
func (x *Session) Write(log *sessionlog.Log, read func(text []byte) error) error {
	for _, text := range x.Entries {
		if err := read(text); err != nil {
			return err
		}
		if _, err := log.Append(text); err != nil {
			return err
		}
	}
	for _, o := range x.Outputs {
		if _, err := log.Archive(o.Key, int64(len(o.Body)), func(w io.Writer) error { _, err := w.Write(o.Body); return err }); err != nil {
			return err
		}
	}
	return nil
}
