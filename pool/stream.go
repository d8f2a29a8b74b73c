package pool

import "trl/runtime/journal"

// What a stream is to those who follow one: web reads it without knowing what keeps it.
type (
	Journal     = journal.Journal
	Reader      = journal.Reader
	Chunk       = journal.Chunk
	ReadOptions = journal.Options
)

// ErrOffsetBeyondEnd: an offset that the stream has not reached.
var ErrOffsetBeyondEnd = journal.ErrOffsetBeyondEnd
