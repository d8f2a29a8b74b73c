// Package protocol is the words on the wire: messages, codes, events, limits, encoding; it runs nothing.
//
// One JSON object is one message. A client sends requests, the server answers each with a success or a failure that carries the
// request's id, and sends events, which have none. PROTOCOL.md beside this file is the reference.
package protocol

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds how deep a message may nest. Nothing we define goes deeper than five; the rest is room.
const maxDepth = 32

// Request is one message of a client.
type Request struct {
	ID     jsontext.Value // a string or a number as the client wrote it; nil where it could not be read, and answered as null
	Method string
	Params jsontext.Value // an object, aliasing the frame; nil where there was none
}

// decoding reads a frame. It is lenient where the frame's params are concerned: those are for DecodeParams, so that a fault in them
// names its field and does not hide an id that comes after them.
var decoding = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

type decoder struct {
	jsontext.Decoder
	src bytes.Buffer
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// DecodeRequest reads one frame. When it refuses the frame, the Request still has the ID if that could be read.
func DecodeRequest(frame []byte) (Request, *Error) {
	d := decoders.Get().(*decoder)
	d.src = *bytes.NewBuffer(frame) // a bytes.Buffer is decoded in place, without a copy
	d.Reset(&d.src, decoding)
	req, err := d.request()
	d.src = bytes.Buffer{}
	d.Reset(&d.src) // lets go of the frame
	decoders.Put(d)
	return req, err
}

// fields are what a request has.
var fields = []string{"id", "method", "params"}

func (d *decoder) request() (req Request, fault *Error) {
	refuse := func(e *Error) { // the first fault is the one reported; reading goes on for the sake of the id
		if fault == nil {
			fault = e
		}
	}
	syntax := func(err error) (Request, *Error) {
		refuse(Errorf(InvalidRequest, "request is not valid JSON: %s", reason(err)))
		return req, fault
	}
	if d.PeekKind() != '{' {
		if _, err := d.ReadValue(); err != nil {
			return syntax(err)
		}
		return req, Errorf(InvalidRequest, "request is not a JSON object")
	}
	d.ReadToken()
	var seen [3]bool
	for d.PeekKind() != '}' {
		token, err := d.ReadToken()
		if err != nil {
			return syntax(err)
		}
		name := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return syntax(err)
		}
		i := slices.Index(fields, name)
		if i < 0 {
			refuse(invalidField("unknown field", name))
			continue
		}
		if seen[i] {
			refuse(invalidField("duplicate field", name))
			continue
		}
		seen[i] = true
		text := value.Kind() == '"' && value.IsValid() // IsValid is strict about UTF-8, the decoder was not
		switch name {
		case "id":
			if !text && value.Kind() != '0' {
				refuse(Errorf(InvalidRequest, "id is not a string or a number").With("field", name))
				continue
			}
			if len(value) > MaxID {
				refuse(Errorf(InvalidRequest, "id is longer than %d bytes", MaxID).With("field", name).With("limit", MaxID))
				continue
			}
			req.ID = bytes.Clone(value) // it may outlive the frame
		case "method":
			if !text {
				refuse(Errorf(InvalidRequest, "method is not a string").With("field", name))
				continue
			}
			req.Method = unquote(value)
		case "params":
			switch value.Kind() {
			case '{':
				req.Params = value
			case 'n': // as if absent
			default:
				refuse(InvalidParam(name, "params is not an object"))
			}
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return syntax(err)
	}
	if _, err := d.ReadToken(); err != io.EOF {
		refuse(Errorf(InvalidRequest, "data after the request"))
	}
	if !seen[0] {
		refuse(Errorf(InvalidRequest, "id is missing").With("field", "id"))
	}
	if req.Method == "" {
		refuse(Errorf(InvalidRequest, "method is missing").With("field", "method"))
	}
	return req, fault
}

func invalidField(what, name string) *Error {
	name = printable(name)
	return Errorf(InvalidRequest, "%s %q", what, name).With("field", name)
}

// DecodeParams reads a method's params into a pointer to its type, strictly: every field known, in its own spelling, once, of its type,
// valid UTF-8 without NUL, nothing deeper than maxDepth, no id empty, what is required present. A null is as good as absent. Then into's Validate has its
// say, when there is one. Every refusal is INVALID_PARAMS with details.field.
func DecodeParams(raw jsontext.Value, into any) *Error {
	if len(raw) == 0 {
		raw = jsontext.Value("{}")
	}
	if raw.Kind() != '{' {
		return InvalidParam("params", "params is not an object")
	}
	if nestsDeeper(raw, maxDepth) {
		return InvalidParam("params", "params nests deeper than %d", maxDepth)
	}
	if err := json.Unmarshal(raw, into, json.RejectUnknownMembers(true)); err != nil {
		return paramFault(err)
	}
	if err := refuseNUL(raw); err != nil {
		return err
	}
	if err := refuseEmpty(raw, into); err != nil {
		return err
	}
	if err := refuseMissing(raw, into); err != nil {
		return err
	}
	if err := refuseLong(raw, into); err != nil {
		return err
	}
	if v, ok := into.(interface{ Validate() *Error }); ok {
		return v.Validate()
	}
	return nil
}

// paramFault turns what the decoder found into words that name the field.
func paramFault(err error) *Error {
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		field, inside := fieldOf(e.JSONPointer)
		switch {
		case e.Err == json.ErrUnknownName:
			return InvalidParam(field, "unknown field %q", field)
		case inside:
			return InvalidParam(field, "%s has a value that is not %s", field, kindOf(e.GoType))
		}
		return InvalidParam(field, "%s is not %s", field, kindOf(e.GoType))
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		field, inside := fieldOf(e.JSONPointer)
		switch {
		case e.Err == jsontext.ErrDuplicateName && inside:
			return InvalidParam(field, "%s has a name twice", field)
		case e.Err == jsontext.ErrDuplicateName:
			return InvalidParam(field, "duplicate field %q", field)
		}
		return InvalidParam(field, "%s is not valid JSON: %s", field, reason(err))
	}
	return InvalidParam("params", "params cannot be read")
}

// fieldOf turns a JSON pointer into a.b. It stops at a map whose keys users choose: the field is ours, what is inside it is not ours to name.
func fieldOf(p jsontext.Pointer) (field string, inside bool) {
	var parts []string
	for token := range p.Tokens() {
		if n := len(parts); n == 1 && (parts[0] == "env" || parts[0] == "labels") {
			inside = true
			break
		}
		parts = append(parts, printable(token))
	}
	if len(parts) == 0 {
		return "params", false
	}
	return strings.Join(parts, "."), inside
}

// kindOf says in a client's words what a Go type wants.
func kindOf(t reflect.Type) string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return "readable"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "an integer in range"
	case reflect.Float64:
		return "a number in range"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}

// reason is what a syntax error says, without the library's prefix and position.
func reason(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "unexpected end"
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && e.Err != nil {
		return printable(e.Err.Error())
	}
	return "unreadable"
}

// printable bounds and cleans text of a client's that an error repeats.
func printable(s string) string {
	const most = 64 // enough for any name of ours with a typing error
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '�'
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
}

func unquote(v jsontext.Value) string {
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	text, _ := jsontext.AppendUnquote(nil, v) // valid: the decoder read it
	return string(text)
}

// nestsDeeper reports whether v, which is valid JSON, nests deeper than most. Counting every bracket, also those inside strings, is a quick way to know that it does not.
func nestsDeeper(v []byte, most int) bool {
	if bytes.Count(v, []byte("{"))+bytes.Count(v, []byte("[")) <= most {
		return false
	}
	depth := 0
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case '{', '[':
			if depth++; depth > most {
				return true
			}
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(v) && v[i] != '"'; i++ {
				if v[i] == '\\' {
					i++
				}
			}
		}
	}
	return false
}

// refuseNUL finds a NUL in v's strings: none of what they become (commands, variables, paths, names) can hold one, bytes for a standard input excepted.
func refuseNUL(v jsontext.Value) *Error {
	if !bytes.Contains(v, []byte(`\u0000`)) { // JSON has no other way to write one
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(v))
	for {
		token, err := d.ReadToken()
		if err != nil {
			return nil // io.EOF: v is valid
		}
		if token.Kind() != '"' || strings.IndexByte(token.String(), 0) < 0 {
			continue
		}
		if p := d.StackPointer(); p != "/stdin" && p != "/data" {
			field, _ := fieldOf(p)
			return InvalidParam(field, "%s contains a NUL", field)
		}
	}
}

// idParams are the params that say what is meant. Where there is none that may be the default session, or everything.
var idParams = []string{"session_id", "session", "exec_id", "process_id", "term_id", "share_id", "recording_id", "stream_id"}

// refuseEmpty finds a name that is empty: a client's variable that was never set must not mean what its absence means. raw is a valid object.
func refuseEmpty(raw jsontext.Value, into any) *Error {
	_, creates := into.(*SessionCreate) // where the name says which session is meant, with if_exists
	if !bytes.Contains(raw, []byte(`""`)) {
		return nil
	}
	for name, value := range members(raw) {
		if string(value) == `""` && (slices.Contains(idParams, name) || creates && name == "name") {
			return InvalidParam(name, "%s is empty", name)
		}
	}
	return nil
}

// members are those of a valid object.
func members(raw jsontext.Value) iter.Seq2[string, jsontext.Value] {
	return func(yield func(string, jsontext.Value) bool) {
		d := jsontext.NewDecoder(bytes.NewBuffer(raw))
		d.ReadToken()
		for d.PeekKind() == '"' {
			token, err := d.ReadToken()
			if err != nil {
				return
			}
			name := token.String()
			value, err := d.ReadValue()
			if err != nil || !yield(name, value) {
				return
			}
		}
	}
}

// refuseMissing looks for the fields of *into that are not optional. A zero value is what a missing field leaves, but may have been sent: then raw tells.
func refuseMissing(raw jsontext.Value, into any) *Error {
	v := reflect.ValueOf(into).Elem()
	if v.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range requiredOf(v.Type()) {
		if v.FieldByIndex(f.index).IsZero() && !has(raw, f.name) {
			return InvalidParam(f.name, "%s is missing", f.name)
		}
	}
	return nil
}

type required struct {
	name  string
	index []int
}

var requireds sync.Map // reflect.Type → []required

func requiredOf(t reflect.Type) []required {
	if fs, ok := requireds.Load(t); ok {
		return fs.([]required)
	}
	var fs []required
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && !strings.Contains(options, "omitzero") {
			fs = append(fs, required{name, f.Index})
		}
	}
	requireds.Store(t, fs)
	return fs
}

// has reports whether the object raw, which is valid, has a member of this name that is not null.
func has(raw jsontext.Value, name string) bool {
	for n, value := range members(raw) {
		if n == name {
			return value.Kind() != 'n'
		}
	}
	return false
}

// writing is how every answer and event is written. Names of files may hold any bytes, and an answer that mentions one must still be sent: such bytes become U+FFFD.
// Output never goes through here as text unless it is valid.
var writing = json.JoinOptions(jsontext.AllowInvalidUTF8(true), json.Deterministic(true))

// AppendResult appends the success {"id":…,"ok":true,"data":…}; a nil data is {}.
func AppendResult(dst []byte, id jsontext.Value, data any) ([]byte, error) {
	n := len(dst)
	if err := WriteResult((*appender)(&dst), id, data); err != nil {
		return dst[:n], err
	}
	return dst, nil
}

// AppendFailure appends the failure {"id":…,"ok":false,"error":{…}}. It cannot fail: details that are not JSON are left out.
func AppendFailure(dst []byte, id jsontext.Value, e *Error) []byte {
	dst = append(appendID(dst, id), `,"ok":false,"error":`...)
	n := len(dst)
	dst, err := appendData(dst, e)
	if err != nil {
		dst, _ = appendData(dst[:n], &Error{Code: e.Code, Message: e.Message})
	}
	return append(dst, '}')
}

// AppendEvent appends the event {"event":…,"data":…}.
func AppendEvent(dst []byte, event string, data any) ([]byte, error) {
	n := len(dst)
	dst = appendQuoted(append(dst, `{"event":`...), event)
	dst, err := appendData(append(dst, `,"data":`...), data)
	if err != nil {
		return dst[:n], err
	}
	return append(dst, '}'), nil
}

func appendID(dst []byte, id jsontext.Value) []byte {
	dst = append(dst, `{"id":`...)
	if len(id) == 0 {
		return append(dst, "null"...)
	}
	return append(dst, id...)
}

func appendData(dst []byte, data any) ([]byte, error) {
	if data == nil {
		return append(dst, "{}"...), nil
	}
	w := (*appender)(&dst)
	err := json.MarshalWrite(w, data, writing)
	return dst, err
}

// appender appends what is written to it.
type appender []byte

func (t *appender) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	return len(p), nil
}

// WriteString is Write.
func (t *appender) WriteString(s string) (int, error) {
	*t = append(*t, s...)
	return len(s), nil
}

// appendQuoted appends s as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error tells of invalid UTF-8, which it has replaced
	return dst
}
