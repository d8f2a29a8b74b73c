package entry

import (
	"bytes"
	"cmp"
	"sync"

	"trl/runtime/sessionlog"
)

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Append writes the entry to the end of a session log.
func (e *Entry) Append(log *sessionlog.Log) error {
	text := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(text)
	text.Reset()
	if err := e.Encode(text); err != nil {
		return err
	}
	_, err := log.Append(text.Bytes())
	return err
}

// Items are the entries of a new beginning of a session log.
type Items struct {
	all []sessionlog.Item
	err error
}

// Add adds an entry.
func (i *Items) Add(e Entry) {
	var text bytes.Buffer
	i.err = cmp.Or(i.err, e.Encode(&text))
	i.AddText(text.Bytes())
}

// AddText adds a binary entry.
func (i *Items) AddText(text []byte) { i.all = append(i.all, sessionlog.Item{Text: text}) }

// AddLogged adds a binary entry that the session log has at a place: it is copied as it is, because there may be thousands. If the place is zero, encode
// makes it.
func (i *Items) AddLogged(at *sessionlog.Position, encode func() []byte) {
	item := sessionlog.Item{Existing: at}
	if *at == (sessionlog.Position{}) {
		item.Text = encode()
	}
	i.all = append(i.all, item)
}

// Compact makes them the beginning of the log.
func (i *Items) Compact(log *sessionlog.Log) error {
	if i.err != nil {
		return i.err
	}
	return log.Compact(i.all...)
}
