package keeper

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"trl/runtime/keeper/wire"
)

// requestReader reads a gateway's requests and handles each. One goroutine reads at a time. In rare cases the start of a process takes
// long. If it takes longer than handOffAfter, another goroutine takes over the reading, and the first one ends after the start. A goroutine
// for every start would make each start 5 % slower, because threads would be woken for nothing.
type requestReader struct {
	s     *server
	l     *wire.Link
	ready func()
	bye   bool       // owned by the reading goroutine, and by readRequests after ended
	ended chan error // the error that ended the connection

	mu       sync.Mutex
	since    time.Time    // guarded by mu; when the reading goroutine began to start a process; zero: it does not start one
	armed    bool         // guarded by mu; handOff will be called
	handOffs atomic.Int64 // number of handoffs; added to with mu held
}

const handOffAfter = 20 * time.Millisecond

func (w *requestReader) read() {
	for {
		m, files, err := w.l.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p := w.s.readPause.Load()
			w.l.ResumeReceive()
			close(p.begun)
			<-p.over
			continue
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			w.ended <- err
			return
		}
		w.bye = w.bye || m.Op == wire.OpBye
		if m.Op == wire.OpReady {
			w.ready()
		}
		turn := w.handOffs.Load()
		if w.s.handle(w.l, m, files); turn != w.handOffs.Load() {
			return
		}
	}
}

// beginStart is called before a start that may take long. The reading goroutine calls done after it, when another goroutine may be reading.
func (w *requestReader) beginStart() (done func()) {
	w.s.starts.Add(1)
	w.s.slow.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	turn := w.handOffs.Load()
	w.since = time.Now()
	if !w.armed {
		w.armed = true
		time.AfterFunc(handOffAfter, w.handOff)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if turn == w.handOffs.Load() {
			w.since = time.Time{}
		}
		w.s.slow.Add(-1)
		w.s.starts.Done()
	}
}

// handOff starts another reading goroutine if the present one has been starting a process for too long. Otherwise it checks again later if
// a start is under way.
func (w *requestReader) handOff() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = !w.since.IsZero()
	if !w.armed {
		return
	}
	left := handOffAfter - time.Since(w.since)
	if left <= 0 {
		w.handOffs.Add(1)
		w.since, w.armed = time.Time{}, false
		go w.read() // ends as in readRequests
		return
	}
	time.AfterFunc(left, w.handOff)
}
