package pool

import "trl/runtime/journal"

// What a stream is to those who follow one: web reads it without knowing what keeps it.
type (
	Journal = journal.Journal
	Reader  = journal.Reader
	Chunk   = journal.Chunk
	Follow  = journal.Options
)

// ErrBeyond: an offset that the stream has not reached.
var ErrBeyond = journal.ErrBeyond
