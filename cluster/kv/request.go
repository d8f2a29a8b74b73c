package kv

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// attemptTimeout bounds the wait for one answer. A server that died does not answer, and its client learns that only from the silence.
const attemptTimeout = 1500 * time.Millisecond

const anyRevision = ^uint64(0)

// again is an error that another attempt may not meet.
type again string

func (e again) Error() string { return string(e) }

// The error codes of JetStream that we treat specially.
const (
	codeNotFound       = 10037
	codeNoStream       = 10059
	codeNameInUse      = 10058
	codeWrongSequence  = 10071
	codeWrongSequence2 = 10164 // of replicated streams
	codeNoReplicas     = 10074 // the server is not part of a cluster
	codeNoPeers        = 10005 // too few servers for so many replicas
)

// apiError is JetStream's refusal of a request.
type apiError struct {
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.Code) }

func codeOf(err error) int {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e.Code
	}
	return 0
}

// retry calls f until it returns nil, ErrNotFound, ErrConflict or ErrTooMany, or until ctx ends; then it returns ErrUnavailable.
func (b *Bucket) retry(ctx context.Context, f func(ctx context.Context) error) error {
	pause := 20 * time.Millisecond
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := f(attempt)
		cancel()
		if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) || errors.Is(err, ErrTooMany) {
			return err
		}
		if errors.Is(err, nats.ErrConnectionClosed) { // we closed it
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		case <-time.After(pause/2 + rand.N(pause)):
			pause = min(2*pause, 500*time.Millisecond)
		}
	}
}

// request sends m and returns the answer. If nobody answers because the bucket does not exist, it makes the bucket and sends m again.
func (b *Bucket) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	answer, err := b.Conn.RequestMsgWithContext(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		if err := b.ensure(ctx); err != nil {
			return nil, err
		}
		answer, err = b.Conn.RequestMsgWithContext(ctx, m)
	}
	return answer, err
}

// publish writes a key, if it has the expected revision; 0 means that it does not exist.
func (b *Bucket) publish(ctx context.Context, key string, value []byte, expected uint64, h nats.Header) (rev uint64, err error) {
	m := &nats.Msg{Subject: b.subject(key), Data: value, Header: h}
	if expected != anyRevision {
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header["Nats-Expected-Last-Subject-Sequence"] = []string{strconv.FormatUint(expected, 10)}
	}
	answer, err := b.request(ctx, m)
	if err != nil {
		return 0, err
	}
	var ack struct {
		Error *apiError `json:"error"`
		Seq   uint64    `json:"seq"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, err
	}
	if ack.Error == nil {
		return ack.Seq, nil
	}
	if ack.Error.Code == codeWrongSequence || ack.Error.Code == codeWrongSequence2 {
		return 0, fmt.Errorf("%w: %w", ErrConflict, ack.Error)
	}
	return 0, ack.Error
}

// latest asks the leader for a key; deleted says that only the memory of its deletion is there.
func (b *Bucket) latest(ctx context.Context, key string) (e Entry, deleted bool, err error) {
	var answer struct {
		Message struct {
			Seq    uint64 `json:"seq"`
			Header []byte `json:"hdrs"`
			Data   []byte `json:"data"`
		} `json:"message"`
	}
	err = b.api(ctx, "STREAM.MSG.GET."+b.stream(), map[string]any{"last_by_subj": b.subject(key)}, &answer)
	switch codeOf(err) {
	case codeNotFound:
		return Entry{}, false, ErrNotFound
	case codeNoStream:
		if err := b.ensure(ctx); err != nil {
			return Entry{}, false, err
		}
		return Entry{}, false, ErrNotFound
	}
	m := answer.Message
	if err == nil && len(m.Header) > 0 {
		r := textproto.NewReader(bufio.NewReader(strings.NewReader(string(m.Header))))
		_, _ = r.ReadLine() // NATS/1.0
		h, _ := r.ReadMIMEHeader()
		deleted = h.Get("KV-Operation") != ""
	}
	return Entry{key, m.Data, m.Seq}, deleted, err
}

// api asks JetStream's API and decodes its answer.
func (b *Bucket) api(ctx context.Context, method string, ask, answer any) error {
	payload, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	m, err := b.Conn.RequestWithContext(ctx, "$JS.API."+method, payload)
	if err != nil {
		return err
	}
	var refused struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &refused); err != nil {
		return err
	}
	if refused.Error != nil {
		return refused.Error
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(m.Data, answer)
}
