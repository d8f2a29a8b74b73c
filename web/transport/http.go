package transport

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"trl/protocol"
)

// NDJSON is the media type of an answer that is followed by events, one JSON object per line.
const NDJSON = "application/x-ndjson"

// blankLineEvery is how often a client that follows a stream gets a blank line, at least. Proxies close a response that is silent for a minute.
const blankLineEvery = 15 * time.Second

// HTTP is the connection of one HTTP request. The body is the client's only message; the response is the answer, and the events after it if the client
// follows them. Each is a line.
type HTTP struct {
	w       http.ResponseWriter
	control *http.ResponseController
	r       *http.Request
	sock    *Socket
	out     *Outbox
	limits  Limits
	follows bool // the client takes events

	large   func() error  // set once in BeforeLarge
	read    bool          // owned by Read
	badBody bool          // set in Read, read in SendClose and Finish, which come later; the body did not come whole, and net/http takes the client for gone
	closed  chan struct{} // closed by Close
	once    sync.Once

	fault protocol.Code // of the answer; set before the answer is sent, by the goroutine that sends it
	begun bool          // guarded by the Outbox's lock until nothing can be written any more; the header has been written
	cut   bool          // set in SendClose, read in Finish; the response may be incomplete
}

// NewHTTP returns the transport of a request that has passed all checks.
func NewHTTP(w http.ResponseWriter, r *http.Request, sock *Socket, limits Limits) *HTTP {
	t := &HTTP{w: w, control: http.NewResponseController(w), r: r, sock: sock, limits: limits, closed: make(chan struct{})}
	t.follows = acceptsNDJSON(r)
	t.out = &Outbox{w: responseWriter{t}, seal: sealLine, long: longLine}
	return t
}

// acceptsNDJSON reports whether the client asks for events after the answer. What accepts everything does not.
func acceptsNDJSON(r *http.Request) bool {
	for kind := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if kind, params, err := mime.ParseMediaType(kind); err == nil && kind == NDJSON && params["q"] != "0" {
			return true
		}
	}
	return false
}

// Name is HTTPName.
func (t *HTTP) Name() string { return HTTPName }

// Outbox returns the connection's Outbox.
func (t *HTTP) Outbox() *Outbox { return t.out }

// IsBinary returns false: every message is a line.
func (t *HTTP) IsBinary() bool { return false }

// TakesInput returns false.
func (t *HTTP) TakesInput() bool { return false }

// Follows reports whether the client takes events after the answer.
func (t *HTTP) Follows() bool { return t.follows }

// BeforeLarge sets what Read calls before it reads more than KeepBuffer of the body.
func (t *HTTP) BeforeLarge(f func() error) { t.large = f }

// Read returns the body, and then ErrHalfClosed.
func (t *HTTP) Read() ([]byte, error) {
	if t.read {
		return nil, ErrHalfClosed
	}
	t.read = true
	body, err := ReadBody(t.control, t.r, t.limits, t.large)
	if err != nil {
		t.badBody = true
		return nil, err
	}
	t.control.SetReadDeadline(time.Time{}) // the answer may take as long as its command. net/http reads on, to see the client go
	return body, nil
}

// ReadBody reads the body of an HTTP request. It calls large before it reads more than KeepBuffer. A body that is too large is a *protocol.Error.
func ReadBody(control *http.ResponseController, r *http.Request, limits Limits, large func() error) ([]byte, error) {
	control.SetReadDeadline(time.Now().Add(limits.Stall))
	var body []byte
	if r.ContentLength <= limits.MaxFrame {
		var err error
		if body, err = readInto(nil, io.LimitReader(r.Body, limits.MaxFrame+1), large); err != nil {
			return nil, err
		}
	}
	if r.ContentLength > limits.MaxFrame || int64(len(body)) > limits.MaxFrame {
		_, _ = io.CopyN(io.Discard, r.Body, 2*limits.MaxFrame) // many clients read the answer only when they have sent everything
		return nil, protocol.Errorf(protocol.RequestTooLarge, "request exceeds %d bytes", limits.MaxFrame).With("limit", limits.MaxFrame)
	}
	return body, nil
}

// SetFault sets the code of the failure that is sent next.
func (t *HTTP) SetFault(code protocol.Code) { t.fault = code }

// responseWriter writes the messages of an HTTP.
type responseWriter struct{ t *HTTP }

// firstEvent begins every event.
var firstEvent = []byte(`{"event":`)

// Write writes one message, or a part of a long one. What comes before the answer is dropped: the response begins with it.
func (w responseWriter) Write(p []byte) (int, error) {
	t := w.t
	if !t.begun {
		if len(p) == 1 || bytes.HasPrefix(p, firstEvent) {
			return len(p), nil
		}
		t.begun = true
		t.begin()
	}
	n, err := t.w.Write(p)
	if err == nil && t.streams() {
		err = t.control.Flush()
	}
	return n, err
}

// streams reports whether events come after the answer.
func (t *HTTP) streams() bool { return t.follows && t.fault == "" }

func (t *HTTP) begin() {
	h := t.w.Header()
	h.Set("Content-Type", "application/json")
	if t.streams() {
		h.Set("Content-Type", NDJSON)
		h.Set("X-Accel-Buffering", "no") // nginx passes each line on at once
	}
	status := http.StatusOK
	if t.fault != "" {
		status = t.fault.Status()
		SetFaultHeader(h, status)
	}
	if t.badBody {
		h.Set("Connection", "close")
	}
	t.w.WriteHeader(status)
}

// SetFaultHeader sets the header of an answer with this status, which says that a request was not carried out.
func SetFaultHeader(h http.Header, status int) {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", "1")
		}
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="trl"`)
	case http.StatusRequestEntityTooLarge:
		h.Set("Connection", "close") // the rest of the body is not read
	}
}

// KeepAlive sends blank lines to a client that follows a stream.
func (t *HTTP) KeepAlive(ctx context.Context, _ func(CloseReason), sent func(error)) {
	if !t.follows {
		return
	}
	tick := time.NewTicker(min(blankLineEvery, t.limits.PingEvery))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			sent(t.out.frame([]byte{'\n'}, false))
		case <-ctx.Done():
			return
		}
	}
}

// AwaitHangup waits until the client has gone. net/http also says so when a write has failed; if that client read nothing for too long, the writer ends
// the connection, with the right reason.
func (t *HTTP) AwaitHangup() {
	select {
	case <-t.r.Context().Done():
		if t.sock.wasSlow.Load() {
			<-t.closed
		}
	case <-t.closed:
	}
}

// isGone reports whether the client has gone. After a body that did not come whole nobody knows.
func (t *HTTP) isGone() bool { return t.r.Context().Err() != nil && !t.badBody }

// SendClose ends the response. A response that is complete stays as it is.
func (t *HTTP) SendClose(why CloseReason) {
	switch {
	case why == ReasonSlow || t.isGone():
		t.cut = true
		t.sock.Close()
	case why == ReasonShutdown || why == ReasonAuthOver || why == ReasonUnshared || why == ReasonPanic || why == ReasonNodeGone:
		t.cut = true
		t.sock.setFinalDeadline(CloseTimeout)
		t.out.frame(nil, true) // a message that is being written goes out complete, and none follows
		if !t.begun {
			t.w.Header().Set("Connection", "close")
		}
	}
}

// Close ends what waits for the client. Nothing is written afterwards: a response must not be used when its handler has returned.
func (t *HTTP) Close() {
	t.once.Do(func() { close(t.closed) })
	t.out.close()
}

// Finish is called after Close. It sends why as the answer, if there has been none, and ends a response that is incomplete so that
// the client sees it.
func (t *HTTP) Finish(why *protocol.Error) {
	switch {
	case !t.begun && !t.isGone():
		t.fault = why.Code
		t.begin()
		t.w.Write(append(protocol.AppendFailure(nil, protocol.NoID, why), '\n'))
	case t.cut && (t.streams() || t.out.err != errClosing):
		panic(http.ErrAbortHandler)
	}
}
