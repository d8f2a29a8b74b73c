package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/go-json-experiment/json"
)

// An Entry is one line: who did what, when, and with which outcome. Only Command may contain text of a client.
type Entry struct {
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"`
	Action  string    `json:"action"`           // a method, or one of the Action… constants
	Outcome string    `json:"outcome,omitzero"` // ok, a protocol code, or how a command ended

	Principal string `json:"principal,omitzero"`
	Role      string `json:"role,omitzero"`
	Remote    string `json:"remote,omitzero"` // address of the peer; "unix" on the Unix socket
	Conn      string `json:"conn,omitzero"`   // id of the connection

	Nodes

	Session  string `json:"session,omitzero"`
	Exec     string `json:"exec,omitzero"`
	Process  string `json:"process,omitzero"`
	Terminal string `json:"terminal,omitzero"`
	Share    string `json:"share,omitzero"` // id of a share link: the one of the request, or the guest's own

	Recording string `json:"recording,omitzero"`
	Owner     string `json:"owner,omitzero"` // the owner of the recording, if that is not Principal

	Command      string `json:"command,omitzero"`       // what the policy allows of Text
	CommandBytes int    `json:"command_bytes,omitzero"` // the length of Text
	Text         string `json:"-"`                      // the command as it was sent; never written

	ExitCode   *int    `json:"exit_code,omitzero"`
	Signal     string  `json:"signal,omitzero"`
	Reason     string  `json:"reason,omitzero"` // why a session or a connection ended, or why a request was refused
	DurationMS float64 `json:"duration_ms,omitzero"`
	Version    string  `json:"version,omitzero"` // the version of the gateway that starts

	Gap
}

// Nodes are nodes of the cluster, by name.
type Nodes struct {
	Node string `json:"node,omitzero"` // carried the request out; it has an entry of its own
	From string `json:"from,omitzero"` // a session has left it
	To   string `json:"to,omitzero"`   // a session moves there
}

// Gap says what is missing before an entry.
type Gap struct {
	Lost       uint64 `json:"lost,omitzero"`       // how many entries before this one found no room
	Suppressed uint64 `json:"suppressed,omitzero"` // how many entries of strangers, or of this principal or share, were left out since their last line
	TornBytes  int    `json:"torn_bytes,omitzero"` // bytes of an incomplete line that a crash left before this one
	TornHash   string `json:"torn_hash,omitzero"`
}

// Actions that are not methods.
const (
	ActionTorn       = "audit.torn"       // the log goes on after a crash in the middle of a line
	ActionLost       = "audit.lost"       // entries are missing here, because the file could not be written
	ActionSuppressed = "audit.suppressed" // entries are missing here, because somebody had too many
	ActionStart      = "server.start"     // a gateway begins to serve
	ActionStop       = "server.stop"      // the gateway ends, and all sessions with it
	ActionLeave      = "server.leave"     // the gateway ends, and another one takes over
	ActionDrain      = "server.drain"     // a drain by a signal; a client's is system.drain
	ActionReload     = "config.reload"    // tokens or a certificate were read again
	ActionConnect    = "client.connect"
	ActionDisconnect = "client.disconnect"
	ActionDownload   = "recording.download" // an admin downloads another principal's recording
	ActionLogin      = "login"
	ActionRefused    = "auth.refused"
	ActionExecEnd    = "exec.end"
	ActionProcessEnd = "process.end"
	ActionTermEnd    = "term.end"
	ActionSessionEnd = "session.end"
	ActionMove       = "session.move"    // also the method: without a client it is of a drain
	ActionArrive     = "session.arrived" // a session has come from another node
)

// hashOf returns the SHA-256 in hexadecimal digits.
func hashOf(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

// A chainHead is the last line of a chain, on which the next line depends. The zero value is the beginning.
type chainHead struct {
	seq  uint64
	hash string
}

// The parts at the end of a line. The line's hash covers everything before hashMark, so a check need not agree on a form of JSON.
const (
	prevMark = `,"prev":"`
	hashMark = `","hash":"`
	lineEnd  = "\"}\n"
	hashLen  = 2 * sha256.Size
)

// Milliseconds returns d in the unit of DurationMS.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// appendLine encodes e as the line after h, and makes it h.
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

// readLine checks a line, without its newline. It returns the entry, the line's own head and the hash of the line before it.
func readLine(line []byte) (e Entry, h chainHead, prev string, err error) {
	body, rest, ok := bytes.Cut(line, []byte(hashMark))
	if i := bytes.LastIndex(line, []byte(hashMark)); ok && i >= 0 { // a command may contain the mark
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
