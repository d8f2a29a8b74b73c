package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/go-json-experiment/json"
)

// An Entry is one line: who did what, when, and what came of it. What a client wrote is in none of its fields but Command.
type Entry struct {
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"`
	Action  string    `json:"action"`           // a method, or one of the Action… words
	Outcome string    `json:"outcome,omitzero"` // ok, a protocol code, or how a command ended

	Principal string `json:"principal,omitzero"`
	Role      string `json:"role,omitzero"`
	Remote    string `json:"remote,omitzero"` // address of the peer; "unix" on the Unix socket
	Conn      string `json:"conn,omitzero"`   // one connection

	Session  string `json:"session,omitzero"`
	Exec     string `json:"exec,omitzero"`
	Process  string `json:"process,omitzero"`
	Terminal string `json:"terminal,omitzero"`
	Share    string `json:"share,omitzero"` // a share link: that a request was about, or that a guest came with

	Recording string `json:"recording,omitzero"`
	Owner     string `json:"owner,omitzero"` // whose the recording is, where that is another than Principal

	Command      string `json:"command,omitzero"`       // what the policy leaves of Text
	CommandBytes int    `json:"command_bytes,omitzero"` // its whole length
	Text         string `json:"-"`                      // the command as it was sent; never written

	ExitCode   *int    `json:"exit_code,omitzero"`
	Signal     string  `json:"signal,omitzero"`
	Reason     string  `json:"reason,omitzero"` // why a session or a connection ended, or a request was refused
	DurationMS float64 `json:"duration_ms,omitzero"`
	Version    string  `json:"version,omitzero"` // of the gateway that starts

	Gap
}

// Gap is what is missing before an entry.
type Gap struct {
	Lost       uint64 `json:"lost,omitzero"`       // entries that there was no room for, before this one
	Suppressed uint64 `json:"suppressed,omitzero"` // of strangers, or of this principal or share: what has no line since the last one that has
	TornBytes  int    `json:"torn_bytes,omitzero"` // what a crash left after the last whole line, before this one
	TornHash   string `json:"torn_hash,omitzero"`
}

// Actions that are no methods.
const (
	ActionTorn       = "audit.torn"       // goes on after a crash in the middle of a line
	ActionLost       = "audit.lost"       // entries are missing here: the file could not be written
	ActionSuppressed = "audit.suppressed" // and these somebody had too many of
	ActionStart      = "server.start"     // a gateway serves
	ActionStop       = "server.stop"      // and everything ends with it
	ActionLeave      = "server.leave"     // and another one goes on
	ActionDrain      = "server.drain"     // by a signal; by a client it is system.drain
	ActionReload     = "config.reload"    // tokens or a certificate were read again
	ActionConnect    = "client.connect"
	ActionDisconnect = "client.disconnect"
	ActionDownload   = "recording.download" // by an admin, of another principal's
	ActionLogin      = "login"
	ActionRefused    = "auth.refused"
	ActionExecEnd    = "exec.end"
	ActionProcessEnd = "process.end"
	ActionTermEnd    = "term.end"
	ActionSessionEnd = "session.end"
)

// hashOf is SHA-256, as hex.
func hashOf(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

// A chainHead is the last line of a chain: what the next one is bound to. The zero value is the beginning.
type chainHead struct {
	seq  uint64
	hash string
}

// The ends of a line. Its hash is of everything before hashMark, so that nobody needs to agree on a form of JSON to check it.
const (
	prevMark = `,"prev":"`
	hashMark = `","hash":"`
	lineEnd  = "\"}\n"
	hashLen  = 2 * sha256.Size
)

// Milliseconds is d in the unit of DurationMS.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// appendLine encodes e as what follows h, which becomes it.
func appendLine(dst []byte, e *Entry, h *chainHead) ([]byte, error) {
	e.Seq = h.seq + 1
	text, err := json.Marshal(e)
	if err != nil {
		return dst, err
	}
	start := len(dst)
	dst = append(dst, text[:len(text)-1]...)
	dst = append(dst, prevMark...)
	dst = append(dst, h.hash...)
	*h = chainHead{e.Seq, hashOf(dst[start:])}
	dst = append(dst, hashMark...)
	dst = append(dst, h.hash...)
	return append(dst, lineEnd...), nil
}

var errNoLine = errors.New("no line of an audit log")

// readLine checks a line, without its newline, and gives what it says and what it is bound to.
func readLine(line []byte) (e Entry, h chainHead, prev string, err error) {
	body, rest, ok := bytes.Cut(line, []byte(hashMark))
	if i := bytes.LastIndex(line, []byte(hashMark)); ok && i >= 0 { // a command could hold the mark
		body, rest = line[:i], line[i+len(hashMark):]
	}
	at := bytes.LastIndex(body, []byte(prevMark))
	if !ok || at < 0 || len(rest) != hashLen+len(lineEnd)-1 || string(rest[hashLen:]) != lineEnd[:2] {
		return e, h, "", errNoLine
	}
	prev = string(body[at+len(prevMark):])
	if hashOf(body) != string(rest[:hashLen]) {
		return e, h, "", errors.New("changed: it does not have its hash")
	}
	if err := json.Unmarshal(append(bytes.Clone(body[:at]), '}'), &e); err != nil {
		return e, h, "", errNoLine
	}
	return e, chainHead{e.Seq, string(rest[:hashLen])}, prev, nil
}
