package rpc

import (
	"context"
	"io"
	"sync"

	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/credit"
	"trl/web/rpc/source"
)

// maxStreams is how many streams one connection may follow at a time; each takes a goroutine.
const maxStreams = 1024

// subscription is one stream to one client. Its pump reads the journal and sends events until the stream or the connection ends, or until stop. A
// connection has at most one subscription to a stream, so no byte comes twice.
type subscription struct {
	source.Source
	*subscriptionEnd
	r            *pool.Reader
	number       uint64         // the stream's number in binary frames
	viewer       *pool.Viewer   // nil unless the source is a terminal
	showScreen   bool           // send the terminal's screen first
	history      bool           // send what is kept, and the screen after it if the beginning is missing
	startMissing bool           // the beginning of what is kept is missing
	block        bool           // the program waits for r, except while the client is silent
	credit       *credit.Credit // nil: no window; set before the pump starts
	refusal      source.Refusal // of an input frame
	stopped      chan struct{}  // closed by stop
	stopping     sync.Once
	minOffset    int64 // size of the stream at the attach; that much is sent even if the command has ended before
}

// subscriptionEnd says how a subscription ended. It outlives the subscription.
type subscriptionEnd struct {
	gone     chan struct{}    // closed when the pump has ended
	exitSent bool             // the exit event was sent; read after gone
	next     *subscriptionEnd // guarded by conn.mu; the end of the subscription that replaced it
}

// await returns when the subscription is gone, or when ctx is done.
func (f *subscriptionEnd) await(ctx context.Context) {
	select {
	case <-f.gone:
	case <-ctx.Done():
	}
}

// stop makes the pump end. When it has ended, gone is closed.
func (sub *subscription) stop() {
	sub.r.Close()
	sub.stopping.Do(func() { close(sub.stopped) })
}

// setBlock makes the program wait for the reader, if it shall at all, or lets it go on.
func (sub *subscription) setBlock(on bool) { sub.r.SetBlock(on && sub.block) }

// windowReader returns the reader of a client with a window, and nil if the client has no window.
func (sub *subscription) windowReader(window int64) *pool.Reader {
	if window == 0 {
		return nil
	}
	return sub.r
}

// streamAck ignores a stream that has ended or that this connection does not follow.
func streamAck(k *call, q *protocol.StreamAck) (any, bool, error) {
	k.c.mu.Lock()
	sub := k.c.subs[q.StreamID]
	k.c.mu.Unlock()
	if sub != nil {
		sub.credit.Ack(q.Offset)
	}
	return nil, false, nil
}

// subscribeLocked answers k and sends the stream from offset on, at most window bytes beyond what the client has acknowledged (0: no such bound). mu
// is held.
func (c *conn) subscribeLocked(k *call, src source.Source, offset int64, block bool, window int64) (any, bool, error) {
	return c.followLocked(k, src, offset, block, func(sub *subscription) any {
		sub.credit = credit.New(window, offset)
		return &protocol.StreamOpened{ExecID: src.Exec, ProcessID: src.Process, StreamID: src.Stream, StreamNo: c.numberStream(sub), Offset: offset, InputOffset: c.inputOffset(sub), RecordingID: src.Recording}
	})
}

// numberStream returns the stream's number for the answer, or 0 if the connection has no binary frames.
func (c *conn) numberStream(sub *subscription) uint64 {
	if !c.binary {
		return 0 // absent
	}
	return sub.number
}

// followLocked is subscribeLocked with another answer. The goroutine that answers also pumps, so nothing of the stream can come before the answer. An
// earlier subscription to the stream has ended by then. mu is held.
func (c *conn) followLocked(k *call, src source.Source, offset int64, block bool, answer func(*subscription) any) (any, bool, error) {
	sub, before, err := c.attachLocked(src, offset, block && c.principal.Role != auth.Viewer) // a viewer may not hold up a command
	if err != nil {
		return nil, false, err
	}
	pumped := false
	defer func() {
		if !pumped { // answer panicked
			c.unsubscribeLocked(sub)
		}
	}()
	data := answer(sub)
	c.subscribed.Store(true)
	c.spawn(k.method, func() { // answers and pumps; ends with the stream, stop or ctx; serve waits for it
		defer c.unsubscribe(sub)
		if before != nil {
			before.await(c.ctx)
		}
		k.answer(data, nil)
		c.pump(sub)
	})
	pumped = true
	return nil, true, nil
}

// checkStreamsLocked returns an error if the connection may not follow another stream. mu is held.
func (c *conn) checkStreamsLocked() error {
	if len(c.subs)+c.reserved >= maxStreams {
		return protocol.Errorf(protocol.LimitExceeded, "this connection follows %d streams", maxStreams).With("limit", maxStreams)
	}
	return nil
}

// attachLocked attaches to the stream and stops before, the subscription that this one replaces. The caller runs the pump once before is gone, and
// calls unsubscribe in any case. mu is held.
func (c *conn) attachLocked(src source.Source, offset int64, block bool) (sub, before *subscription, err error) {
	before = c.subs[src.Stream]
	if before == nil {
		if err := c.checkStreamsLocked(); err != nil {
			return nil, nil, err
		}
	}
	if e := c.usage.ReserveStream(); e != nil {
		return nil, nil, e
	}
	defer func() {
		if err != nil {
			c.usage.Streams.Add(-1)
		}
	}()
	// A binary frame may end in the middle of a character, so that what a user types appears at once.
	r, err := src.Attach(offset, pool.ReadOptions{Block: block, Text: !c.binary})
	if err != nil {
		return nil, nil, err
	}
	c.streamNo += c.stride
	sub = &subscription{Source: src, subscriptionEnd: &subscriptionEnd{gone: make(chan struct{})}, r: r, number: c.streamNo, block: block, stopped: make(chan struct{}), minOffset: src.Journal.Size()}
	c.subs[src.Stream], c.numbered[sub.number] = sub, sub
	if before != nil {
		before.next = sub.subscriptionEnd
		before.stop()
	} else if w := c.watches[src.Session]; w != nil {
		w.noteLocked(src.Name(), sub.subscriptionEnd)
	}
	return sub, before, nil
}

// doneContext is a context that ends when a channel is closed. With it the end of a command wakes Next, without a goroutine for each stream.
type doneContext struct {
	context.Context
	done <-chan struct{}
}

func (u doneContext) Done() <-chan struct{} { return u.done }

func (u doneContext) Err() error {
	select {
	case <-u.done:
		return context.Canceled
	default:
		return nil
	}
}

// unsubscribe undoes attachLocked.
func (c *conn) unsubscribe(sub *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsubscribeLocked(sub)
}

func (c *conn) unsubscribeLocked(sub *subscription) {
	sub.r.Close() // the command no longer waits for this reader
	if sub.viewer != nil {
		sub.viewer.Leave()
	}
	c.usage.Streams.Add(-1)
	delete(c.numbered, sub.number)
	if c.subs[sub.Stream] == sub {
		delete(c.subs, sub.Stream)
	}
	close(sub.gone)
}

// pump sends the output of the journal. The exit event comes last, after every byte that the command wrote.
func (c *conn) pump(sub *subscription) {
	defer context.AfterFunc(c.ctx, sub.stop)() // wakes Next when the connection ends
	if sub.showScreen && !c.sendScreen(sub, -1) {
		return
	}
	running := doneContext{context.Background(), sub.Done}
	for {
		if !c.sendScreenAfterReplay(sub) {
			return
		}
		ch, err := sub.r.Next(running)
		if err == nil {
			if !c.sendChunk(sub, ch) {
				return
			}
			continue
		}
		if err == io.EOF { // no process holds the pipes; the result will come soon
			select {
			case <-sub.Done:
			case <-sub.stopped: // stop, or the connection has ended
				return
			}
		} else if err != context.Canceled {
			return // stopped
		}
		break
	}
	// The command has ended. Processes that it left running may write more into the stream, but this subscription ends here.
	for end := max(sub.EndOffset(), sub.minOffset); sub.r.Behind(end); {
		ch, err := sub.r.Next(context.Background())
		if err == io.EOF {
			break
		}
		if err != nil || !c.sendChunk(sub, ch) {
			return
		}
	}
	if !c.sendScreenAfterReplay(sub) {
		return
	}
	if c.ctx.Err() == nil {
		name, data := sub.Exit()
		sub.exitSent = c.sendEvent(name, data)
	}
}

// sendChunk sends one piece of output, after an event for bytes that are missing before it. It reports whether the client is still there.
func (c *conn) sendChunk(sub *subscription, ch pool.Chunk) bool {
	switch note := ch.Note.(type) {
	case protocol.Event:
		return c.sendEvent(note.Name, note.Data)
	case pool.DirectedEvent:
		return note.To != sub.viewer || c.sendEvent(note.Event.Name, note.Event.Data)
	}
	if ch.Gap > 0 && sub.Terminal != nil && !sub.history {
		return c.sendScreen(sub, ch.Offset-ch.Gap)
	}
	if ch.Gap > 0 {
		sub.startMissing = true
		c.srv.m.Gaps.Inc()
		c.srv.m.GapBytes.Add(float64(ch.Gap))
		if !c.sendEvent("stream.gap", &protocol.StreamGap{StreamID: sub.Stream, From: ch.Offset - ch.Gap, To: ch.Offset}) {
			return false
		}
	}
	o := protocol.Output{
		StreamID: sub.Stream, TermID: sub.Term(), ExecID: sub.Exec, ProcessID: sub.Process,
		Offset: ch.Offset, Stream: ch.Stream.String(), Data: ch.Data, Replay: ch.Replay,
	}
	return c.sendOutput(sub, &o)
}

// replaySlack is how many bytes may follow the kept output before the screen is sent in any case.
const replaySlack = 256 << 10

// sendScreenAfterReplay sends the screen after the kept output, if the beginning of that output is missing: the client then cannot know the
// terminal's modes and the rest of the screen. It waits until the client has got all output, because one cannot scroll back to output that a screen
// replaces.
func (c *conn) sendScreenAfterReplay(sub *subscription) bool {
	if !sub.history || sub.r.Behind(sub.minOffset) {
		return true
	}
	if !sub.startMissing {
		sub.history = false
		return true
	}
	from := sub.r.Offset()
	late := from >= sub.minOffset+replaySlack
	if !late && sub.r.Behind(sub.Journal.Size()) {
		return true
	}
	text, at, err := sub.Terminal.Screen(c.ctx)
	if err != nil { // the client has gone
		return false
	}
	if at > from && !late {
		return true
	}
	sub.history = false
	return c.sendSnapshot(sub, from, text, at)
}

// sendScreen sends the terminal's screen in place of output from offset from on, which is missing. from is negative if the client has asked for the
// screen.
func (c *conn) sendScreen(sub *subscription, from int64) bool {
	text, at, err := sub.Terminal.Screen(c.ctx)
	if err != nil { // the client has gone
		return false
	}
	return c.sendSnapshot(sub, from, text, at)
}

func (c *conn) sendSnapshot(sub *subscription, from int64, text []byte, at int64) bool {
	sub.r.Skip(at)
	if from >= 0 && from < at {
		c.srv.m.Gaps.Inc()
		c.srv.m.GapBytes.Add(float64(at - from))
		if !c.sendEvent("stream.gap", &protocol.StreamGap{StreamID: sub.Stream, From: from, To: at}) {
			return false
		}
	}
	return c.sendOutput(sub, &protocol.Output{StreamID: sub.Stream, TermID: sub.Terminal.ID(), Offset: at, Stream: "tty", Data: text, Replay: true, Snapshot: true})
}

// sendOutput sends a piece of output in the form that this client uses.
func (c *conn) sendOutput(sub *subscription, o *protocol.Output) bool {
	if !sub.credit.Await(c.ctx, o.Offset, c.slowLimit, sub.stopped, sub.setBlock) {
		return false
	}
	var err error
	if c.binary {
		err = c.out.SendBinary(func(dst []byte) []byte { return protocol.AppendBinary(dst, sub.number, o) })
	} else {
		err = c.out.Send(func(dst []byte) []byte { return protocol.AppendOutput(dst, sub.Output, o) })
	}
	if err == nil {
		c.bytesOut.Add(float64(len(o.Data)))
	}
	c.checkSent(err)
	return err == nil
}

// detach ends this connection's subscription to a stream, if there is one. It answers when nothing more of the stream can come.
func (k *call) detach(stream string) (any, bool, error) {
	k.c.mu.Lock()
	sub := k.c.subs[stream]
	k.c.mu.Unlock()
	if sub == nil {
		return nil, false, nil
	}
	sub.stop()
	return k.answerLater(func() (any, bool, error) {
		sub.await(k.c.ctx)
		return nil, false, nil
	})
}
