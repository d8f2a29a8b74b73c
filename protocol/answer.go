package protocol

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// WriteResult writes the success {"id":…,"ok":true,"data":…} to w in pieces, the same bytes each time; a nil data becomes {}. It does not copy the
// content of data. It returns an error of w.
func WriteResult(w io.Writer, id jsontext.Value, data any) error {
	scratch := scratchBuffers.Get().(*[]byte)
	defer scratchBuffers.Put(scratch)
	*scratch = append(appendID((*scratch)[:0], id), `"ok":true,"data":`...)
	_, err := w.Write(*scratch)
	if err != nil {
		return err
	}
	switch d := data.(type) {
	case nil:
		_, err = io.WriteString(w, "{}")
	case *ExecAnswer:
		err = d.write(w, scratch)
	default:
		err = json.MarshalWrite(w, data, writing)
	}
	if err == nil {
		_, err = io.WriteString(w, "}")
	}
	return err
}

// Text is output as it is kept: pieces in their order.
type Text [][]byte

// TextOf makes a Text of one piece.
func TextOf(p []byte) Text { return Text{p} }

// Len returns the number of bytes.
func (t Text) Len() (n int) {
	for _, p := range t {
		n += len(p)
	}
	return n
}

// valid reports whether the joined pieces are UTF-8.
func (t Text) valid() bool {
	var torn []byte // the beginning of a character at the end of the pieces so far
	for _, p := range t {
		for len(torn) > 0 && len(p) > 0 {
			torn, p = append(torn, p[0]), p[1:]
			if !utf8.FullRune(torn) {
				continue
			}
			if !utf8.Valid(torn) {
				return false
			}
			torn = nil
		}
		whole := len(p)
		for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
			if last := p[len(p)-n:]; utf8.RuneStart(last[0]) {
				if !utf8.FullRune(last) {
					whole = len(p) - n
				}
				break
			}
		}
		if !utf8.Valid(p[:whole]) {
			return false
		}
		torn = append(torn, p[whole:]...)
	}
	return len(torn) == 0
}

// encoding is the encoding in which the text is written.
func (t Text) encoding() string {
	if t.valid() {
		return UTF8
	}
	return Base64
}

// scratchBuffers hold one piece of text each while it is written.
var scratchBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 6*escapeAtOnce); return &b }}

const escapeAtOnce = 8 << 10 // bytes of text; six times as many if each is escaped

// write writes the content of a JSON string.
func (t Text) write(w io.Writer, encoding string) error {
	if encoding == Base64 {
		e := base64.NewEncoder(base64.StdEncoding, w)
		for _, p := range t {
			if _, err := e.Write(p); err != nil {
				return err
			}
		}
		return e.Close()
	}
	scratch := scratchBuffers.Get().(*[]byte)
	defer scratchBuffers.Put(scratch)
	for _, p := range t {
		for len(p) > 0 {
			n := min(len(p), escapeAtOnce)
			*scratch = appendEscaped((*scratch)[:0], p[:n])
			if _, err := w.Write(*scratch); err != nil {
				return err
			}
			p = p[n:]
		}
	}
	return nil
}

// ExecAnswer is an ExecResult that is about to be sent. Its texts are written from where they are kept, so an answer with 64 MiB of control
// characters, which is 384 MiB of JSON, needs no memory of its own.
type ExecAnswer struct {
	ExecResult // without Stdout and Stderr
	Out, Err   Text
}

// SetTexts sets the command's output.
func (a *ExecAnswer) SetTexts(stdout, stderr Text) {
	a.Out, a.Err = stdout, stderr
	a.StdoutEncoding, a.StderrEncoding = stdout.encoding(), stderr.encoding()
}

// Size returns the number of bytes in the texts.
func (a *ExecAnswer) Size() int { return a.Out.Len() + a.Err.Len() }

// Result returns a with its texts in place.
func (a *ExecAnswer) Result() ExecResult {
	r := a.ExecResult
	r.Stdout, r.Stderr = a.Out.encoded(r.StdoutEncoding), a.Err.encoded(r.StderrEncoding)
	return r
}

func (t Text) encoded(encoding string) string {
	if all := bytes.Join(t, nil); encoding == Base64 {
		return base64.StdEncoding.EncodeToString(all)
	} else {
		return string(all)
	}
}

// emptyTexts marks the place of the texts in an ExecResult without texts. No string in it can contain this, because its quotes would be escaped there.
const emptyTexts = `"stdout":"","stderr":""`

func (a *ExecAnswer) write(w io.Writer, scratch *[]byte) error {
	text, err := appendData((*scratch)[:0], &a.ExecResult)
	*scratch = text
	if err != nil {
		return err
	}
	before, after, ok := bytes.Cut(text, []byte(emptyTexts))
	if !ok {
		return errors.New("result without texts")
	}
	for _, part := range []struct {
		before   []byte
		name     string
		text     Text
		encoding string
	}{
		{before, `"stdout":"`, a.Out, a.StdoutEncoding},
		{nil, `","stderr":"`, a.Err, a.StderrEncoding},
	} {
		if _, err := w.Write(part.before); err != nil {
			return err
		}
		if _, err := io.WriteString(w, part.name); err != nil {
			return err
		}
		if err := part.text.write(w, part.encoding); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(w, `"`); err != nil {
		return err
	}
	_, err = w.Write(after)
	return err
}
