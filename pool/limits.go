package pool

import (
	"errors"

	"trl/protocol"
	"trl/runtime"
)

// limitsFor is what a session gets that asks for q: each limit is the server's, which is most, or a lower one. To ask for one that cannot
// be enforced here is refused, since to ignore it would be a lie; whoever asks for more than the server gives finds the
// server's in the answer.
func (p *Pool) limitsFor(q *protocol.Limits, most protocol.Limits) (protocol.Limits, error) {
	if q == nil {
		return most, nil
	}
	cannot := p.base.Keeper.Unenforceable()
	for _, limit := range q.Names() {
		if why, ok := cannot[limit]; ok {
			return protocol.Limits{}, errNoLimit(&runtime.LimitError{Limit: limit, Why: why})
		}
	}
	return protocol.Limits{
		MemoryBytes: lowerBound(q.MemoryBytes, most.MemoryBytes), Pids: lowerBound(q.Pids, most.Pids), CPU: lowerBound(q.CPU, most.CPU),
		FileSizeBytes: lowerBound(q.FileSizeBytes, most.FileSizeBytes), OpenFiles: lowerBound(q.OpenFiles, most.OpenFiles),
	}, nil
}

// lowerBound is the smaller of two bounds; 0 is none.
func lowerBound[T int64 | float64](asked, most T) T {
	if asked == 0 || most > 0 && asked > most {
		return most
	}
	return asked
}

func errNoLimit(e *runtime.LimitError) *protocol.Error {
	return protocol.Errorf(protocol.NotSupported, "limits.%s cannot be enforced here", e.Limit).
		With("field", "limits."+e.Limit).With("reason", e.Why)
}

// limitFault is err as a client may see it where it is about a limit, else nil.
func limitFault(err error) *protocol.Error {
	if e, ok := errors.AsType[*runtime.LimitError](err); ok {
		return errNoLimit(e).WithCause(err)
	}
	return nil
}
