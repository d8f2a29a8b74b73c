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

// A requestReader reads a gateway's requests and sees to each. One goroutine has it at a time. A start of a process may take long,
// in seldom cases; whoever is at one for longer than soon is relieved by another, and has nothing more to do after it. To
// give each start to another goroutine at once would cost it a twentieth, for the threads that are woken for nothing.
type requestReader struct {
	s     *server
	l     *wire.Link
	ready func()
	bye   bool       // owned by who has the watch, and by listen after ended
	ended chan error // what the connection ended with

	mu       sync.Mutex
	since    time.Time    // guarded by mu; when who has the watch began to start something; zero: he does not
	armed    bool         // guarded by mu; relieve will be called
	handOffs atomic.Int64 // how often the watch was taken over; added to with mu held
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

// beginStart is called by who has the watch before a start that may take long, and done after it, when it may be somebody else's.
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

// handOff takes the watch from who has been at a start for long, and looks again as long as there may be somebody.
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
		go w.read() // as in listen
		return
	}
	time.AfterFunc(left, w.handOff)
}
