package link

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

// The handshake, after the upgrade to a WebSocket, is four text messages:
//
//	dialer   → opening    who it is, whom it wants, which URL it has dialled, its versions, a nonce
//	acceptor → reply      who it is, its versions, a nonce, and a proof; perhaps a refusal
//	dialer   → assertion  a proof, and the Hello
//	acceptor → welcome    perhaps a refusal
//
// With a secret, each proof is an HMAC-SHA256 over everything that was said until then, the role of its maker, and the keying material of the TLS
// session. It fits no other role (reflection), no other nonces (replay), no other node, epoch or URL (relaying), no other versions (downgrade) and no
// other TLS session (somebody in between). Without a secret proofs are empty, and both ends rest on the certificates.
const (
	// Subprotocol is the WebSocket subprotocol of links.
	Subprotocol = "trl.link.v1"
	// Path is where an acceptor takes links.
	Path = "/v1/link"

	maxHandshake = 16 << 10 // bytes of one message
	nonceSize    = 32
)

// Version is the newest version of the link protocol that this program speaks.
const Version = 1

// ours are the versions that this program speaks.
var ours = spokenBy(Version)

// spokenBy returns the versions that a program speaks: its newest one and the one before it.
func spokenBy(newest int) Versions { return Versions{max(1, newest-1), newest} }

// CheckVersion returns a *VersionError if no link to a node is possible whose newest version this is.
func CheckVersion(newest int) error {
	theirs := spokenBy(newest)
	if _, ok := common(ours, theirs); !ok {
		return &VersionError{ours, theirs}
	}
	return nil
}

type opening struct {
	Versions Versions `json:"versions"`
	From     Node     `json:"from"`
	Want     Node     `json:"want"`
	URL      string   `json:"url"`
	Nonce    []byte   `json:"nonce"`
}

type reply struct {
	Versions Versions       `json:"versions"`
	From     Node           `json:"from"`
	Nonce    []byte         `json:"nonce"`
	Refusal  jsontext.Value `json:"refusal,omitzero"`
	Proof    []byte         `json:"proof,omitzero"`
}

type assertion struct {
	Hello jsontext.Value `json:"hello"`
	Proof []byte         `json:"proof,omitzero"`
}

type welcome struct {
	Refusal *refusal `json:"refusal,omitzero"`
}

// refusal says why an acceptor takes no link.
type refusal struct {
	Reason string          `json:"reason"`
	Text   string          `json:"text,omitzero"`
	Field  string          `json:"field,omitzero"` // of a HelloError
	Error  *protocol.Error `json:"error,omitzero"` // of AcceptorOptions.Admit
}

// reasons are the names of errors in a refusal.
var reasons = []struct {
	name string
	err  error
}{{"untrusted", ErrUntrusted}, {"secret", ErrSecret}, {"url", ErrURL}, {"self", ErrSelf}, {"peer", ErrPeer}, {"handshake", ErrHandshake}}

func refusalOf(err error) *refusal {
	r := &refusal{Reason: "other", Text: clip(err.Error(), 512)}
	if hello, ok := errors.AsType[*HelloError](err); ok {
		r.Reason, r.Field, r.Text = "hello", hello.Field, hello.Why
	} else if e, ok := errors.AsType[*protocol.Error](err); ok {
		r.Reason, r.Text, r.Error = "request", "", e
	} else if _, ok := errors.AsType[*VersionError](err); ok {
		r.Reason, r.Text = "version", ""
	} else if _, ok := errors.AsType[*EpochError](err); ok {
		r.Reason, r.Text = "epoch", ""
	}
	for _, known := range reasons {
		if errors.Is(err, known.err) {
			r.Reason = known.name
		}
	}
	return r
}

// errorOf is the reverse of refusalOf, at the dialer.
func (r *refusal) errorOf(t *transcript) error {
	switch {
	case r.Reason == "hello":
		return &HelloError{clip(r.Field, 64), clip(r.Text, 256)}
	case r.Reason == "request" && r.Error != nil:
		return r.Error
	case r.Reason == "version":
		return &VersionError{t.opening.Versions, t.reply.Versions}
	case r.Reason == "epoch":
		return &EpochError{t.opening.Want, t.reply.From}
	}
	for _, known := range reasons {
		if r.Reason == known.name {
			return fmt.Errorf("refused: %w (%s)", known.err, clip(r.Text, 512))
		}
	}
	return fmt.Errorf("refused: %s", clip(r.Text, 512))
}

func clip(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }

// transcript is what both ends know of a handshake, and what a proof covers.
type transcript struct {
	opening opening
	reply   reply
	binding []byte // keying material of the TLS session; none without TLS
}

// proof is the proof of one role, "acceptor" or "dialer". body is what the maker says beside it.
func (t *transcript) proof(secret []byte, role string, body []byte) []byte {
	if secret == nil {
		return nil
	}
	m := hmac.New(sha256.New, secret)
	put := func(p []byte) {
		m.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p))))
		m.Write(p)
	}
	o, r := &t.opening, &t.reply
	for _, s := range []string{Subprotocol, role, o.URL, o.From.Name, o.From.Epoch, o.Want.Name, o.Want.Epoch, r.From.Name, r.From.Epoch} {
		put([]byte(s))
	}
	for _, n := range []int{o.Versions.Min, o.Versions.Max, r.Versions.Min, r.Versions.Max} {
		put(binary.BigEndian.AppendUint64(nil, uint64(n)))
	}
	for _, p := range [][]byte{o.Nonce, r.Nonce, t.binding, body} {
		put(p)
	}
	return m.Sum(nil)
}

func (t *transcript) check(secret []byte, role string, body, proof []byte) error {
	if secret != nil && !hmac.Equal(proof, t.proof(secret, role, body)) {
		return ErrSecret
	}
	return nil
}

// bindingOf returns keying material that both ends of a TLS session share, and nobody else (RFC 9266).
func bindingOf(s *tls.ConnectionState) ([]byte, error) {
	if s == nil {
		return nil, nil
	}
	return s.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
}

// common returns the version that two nodes speak: the highest of the lower one.
func common(a, b Versions) (int, bool) {
	v := min(a.Max, b.Max)
	return v, v >= max(a.Min, b.Min) && v > 0
}

func newNonce() []byte {
	b := make([]byte, nonceSize)
	rand.Read(b) // never fails (crypto/rand)
	return b
}

// canonicalURL checks a link's URL and returns the form that both ends compare.
func canonicalURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("link URL: %w", err)
	case len(raw) > maxURL, u.Scheme != "ws" && u.Scheme != "wss", u.Hostname() == "", u.Port() == "", u.User != nil, u.RawQuery != "", u.Fragment != "",
		u.Path != "" && u.Path != "/" && u.Path != Path:
		return nil, fmt.Errorf("link URL %q: want wss://HOST:PORT", clip(raw, 100))
	}
	u.Host, u.Path = strings.ToLower(u.Host), Path
	return u, nil
}

// receive reads a message of the handshake.
func (c *Conn) receive(v any) error {
	kind, msg, err := c.Read()
	if err != nil {
		return err
	}
	if kind != Text || json.Unmarshal(msg, v) != nil {
		return ErrHandshake
	}
	return nil
}

func (c *Conn) say(v any) error {
	msg, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(Text, msg)
}

// introduce is the dialer's half of the handshake.
func (c *Conn) introduce(o *DialerOptions, to Peer, h *Hello, binding []byte) (version int, err error) {
	t := &transcript{opening: opening{Versions: o.versions, From: o.Self, Want: to.Node, URL: to.URL, Nonce: newNonce()}, binding: binding}
	c.transcript = t
	if err := c.say(&t.opening); err != nil {
		return 0, err
	}
	if err := c.receive(&t.reply); err != nil {
		return 0, err
	}
	if len(t.reply.Nonce) != nonceSize || t.reply.From.check() != nil {
		return 0, ErrHandshake
	}
	secret := o.Credentials.key()
	if err := t.check(secret, "acceptor", t.reply.Refusal, t.reply.Proof); err != nil {
		return 0, err
	}
	if t.reply.Refusal != nil {
		r := refusal{}
		if json.Unmarshal(t.reply.Refusal, &r) != nil {
			return 0, ErrHandshake
		}
		return 0, r.errorOf(t)
	}
	if t.reply.From != to.Node {
		return 0, &EpochError{to.Node, t.reply.From}
	}
	version, ok := common(o.versions, t.reply.Versions)
	if !ok {
		return 0, &VersionError{o.versions, t.reply.Versions}
	}
	return version, c.assert(secret, h)
}

// assert says for whom the link is, and waits for the welcome.
func (c *Conn) assert(secret []byte, h *Hello) error {
	hello, err := json.Marshal(h)
	if err != nil {
		return err
	}
	c.hellos++
	if err := c.say(&assertion{hello, c.transcript.proof(secret, proofRole(c.hellos), hello)}); err != nil {
		return err
	}
	w := welcome{}
	if err := c.receive(&w); err != nil {
		return err
	}
	if w.Refusal != nil {
		return w.Refusal.errorOf(c.transcript)
	}
	return nil
}
