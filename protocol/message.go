// Package protocol defines the protocol: messages, codes, events, limits, encoding. It runs nothing.
//
// One JSON object is one message. A client sends requests. The server answers each with a success or a failure that carries the request's id, and
// sends events, which have no id. PROTOCOL.md in this folder is the reference.
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

// maxDepth bounds the nesting of a message. Nothing that we define nests deeper than five; the rest is reserve.
const maxDepth = 32

// Request is one message from a client.
type Request struct {
	ID     jsontext.Value // a string or a number as the client wrote it; NoID; nil if it could not be read, and then answered as null
	Method string
	Params jsontext.Value // an object, aliasing the frame; nil if there was none
}

// NoID is the ID of a request that needs none, because it gets its answer over HTTP. The answer has no id either.
var NoID = jsontext.Value{}

// decoding reads a frame. It is lenient about the frame's params, because DecodeParams checks those: a fault in them must name its field, and must not
// hide an id that comes after them.
var decoding = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

type decoder struct {
	jsontext.Decoder
	src bytes.Buffer
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// DecodeRequest reads one frame. If it refuses the frame, the Request still has the ID if that could be read.
func DecodeRequest(frame []byte) (Request, *Error) { return decodeRequest(frame, nil) }

// DecodeHTTPRequest reads the body of an HTTP request: a request whose id may be absent.
func DecodeHTTPRequest(body []byte) (Request, *Error) { return decodeRequest(body, NoID) }

// decodeRequest reads one frame. absent is the ID of a request that has none; nil: each needs one.
func decodeRequest(frame []byte, absent jsontext.Value) (Request, *Error) {
	d := decoders.Get().(*decoder)
	d.src = *bytes.NewBuffer(frame) // a bytes.Buffer is decoded in place, without a copy
	d.Reset(&d.src, decoding)
	req, err := d.request(absent)
	d.src = bytes.Buffer{}
	d.Reset(&d.src) // drops the frame
	decoders.Put(d)
	return req, err
}

// fields are the fields of a request.
var fields = []string{"id", "method", "params"}

func (d *decoder) request(absent jsontext.Value) (req Request, fault *Error) {
	req.ID = absent
	refuse := func(e *Error) { // reports the first fault; reading continues, to find the id
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
			case 'n': // counts as absent
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
	if !seen[0] && absent == nil {
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

// DecodeParams reads a method's params into a pointer to its type, strictly. Every field must be known, in its exact spelling, appear once, have its
// type, and be valid UTF-8 without NUL. Nothing may nest deeper than maxDepth, no id may be empty, and required fields must be present. A null counts
// as absent. Then it calls into's Validate, if there is one. Every refusal is INVALID_PARAMS with details.field.
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

// paramFault turns the decoder's error into one that names the field.
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

// fieldOf turns a JSON pointer into a.b. It stops at a map whose keys users choose: the field is ours, its content is not.
func fieldOf(p jsontext.Pointer) (field string, inside bool) {
	var parts []string
	for token := range p.Tokens() {
		if n := len(parts); n > 0 && (parts[n-1] == "env" || parts[n-1] == "labels") {
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

// kindOf describes the expected Go type in a client's words.
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

// reason returns the text of a syntax error without the library's prefix and position.
func reason(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "unexpected end"
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && e.Err != nil {
		return printable(e.Err.Error())
	}
	return "unreadable"
}

// printable bounds and cleans a client's text that an error repeats.
func printable(s string) string {
	const most = 64 // enough for any of our names with a typing error
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

// nestsDeeper reports whether v, which is valid JSON, nests deeper than most. Counting every bracket, also those inside strings, is a quick way to
// show that it does not.
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

// refuseNUL finds a NUL in v's strings. Commands, variables, paths and names cannot contain one; bytes for a standard input can.
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

// idParams are the params that identify an object. Without any, a request may mean the default session, or everything.
var idParams = []string{"session_id", "session", "exec_id", "process_id", "term_id", "share_id", "recording_id", "stream_id"}

// refuseEmpty finds an empty name: a client's variable that was never set must not mean the same as an absent parameter. raw is a valid object.
func refuseEmpty(raw jsontext.Value, into any) *Error {
	_, creates := into.(*SessionCreate) // whose name, with if_exists, says which session is meant
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

// members iterates over the members of a valid object.
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

// refuseMissing looks for required fields of *into. A missing field leaves a zero value, but a client may also have sent one; then raw shows which.
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

// has reports whether the valid object raw has a member of this name that is not null.
func has(raw jsontext.Value, name string) bool {
	for n, value := range members(raw) {
		if n == name {
			return value.Kind() != 'n'
		}
	}
	return false
}

// writing are the options for every answer and event. Names of files may contain any bytes, and an answer that mentions one must still be sent: such
// bytes become U+FFFD. Output goes through here as text only if it is valid.
var writing = json.JoinOptions(jsontext.AllowInvalidUTF8(true), json.Deterministic(true))

// AppendFailure appends the failure {"id":…,"ok":false,"error":{…}}. It cannot fail: details that are not JSON are left out.
func AppendFailure(dst []byte, id jsontext.Value, e *Error) []byte {
	dst = append(appendID(dst, id), `"ok":false,"error":`...)
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

// appendID appends the beginning of an answer, up to and with the comma before ok.
func appendID(dst []byte, id jsontext.Value) []byte {
	switch {
	case id == nil:
		return append(dst, `{"id":null,`...)
	case len(id) == 0: // NoID
		return append(dst, '{')
	}
	return append(append(append(dst, `{"id":`...), id...), ',')
}

func appendData(dst []byte, data any) ([]byte, error) {
	if data == nil {
		return append(dst, "{}"...), nil
	}
	w := (*appender)(&dst)
	err := json.MarshalWrite(w, data, writing)
	return dst, err
}

// appender appends the bytes that are written to it.
type appender []byte

func (t *appender) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	return len(p), nil
}

// WriteString is like Write.
func (t *appender) WriteString(s string) (int, error) {
	*t = append(*t, s...)
	return len(s), nil
}

// appendQuoted appends s as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error reports invalid UTF-8, which AppendQuote has replaced
	return dst
}
