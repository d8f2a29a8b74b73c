package protocol

import "time"

// StreamAck is the params of stream.ack.
type StreamAck struct {
	StreamID string `json:"stream_id"`
	Offset   int64  `json:"offset"`
}

// StreamStarted is the data of stream.started. On a connection with binary frames it comes before the first chunk of a stream that no answer has
// numbered.
type StreamStarted struct {
	StreamID string `json:"stream_id"`
	StreamNo uint64 `json:"stream_no"`
	ExecID   string `json:"exec_id,omitzero"`
}

// InputRefused is the data of input.refused.
type InputRefused struct {
	StreamNo uint64 `json:"stream_no"`
	Offset   int64  `json:"offset"`
	Error    *Error `json:"error"`
}

// Output is the data of exec.output, process.output and term.output.
type Output struct {
	StreamID  string `json:"stream_id"`
	ExecID    string `json:"exec_id,omitzero"`
	ProcessID string `json:"process_id,omitzero"`
	TermID    string `json:"term_id,omitzero"`
	Offset    int64  `json:"offset"`
	Stream    string `json:"stream"`
	Data      []byte `json:"-"` // raw; AppendOutput writes data and encoding
	Replay    bool   `json:"replay,omitzero"`
	Snapshot  bool   `json:"snapshot,omitzero"` // a terminal's screen: not bytes of the stream, which continues at Offset
}

// StreamGap is the data of stream.gap.
type StreamGap struct {
	StreamID string `json:"stream_id"`
	From     int64  `json:"from"`
	To       int64  `json:"to"`
}

// SessionState is the data of session.state.
type SessionState struct {
	SessionID string    `json:"session_id"`
	From      string    `json:"from"`
	To        string    `json:"to"`
	At        time.Time `json:"at"`
	Reason    Reason    `json:"reason,omitzero"`
}

// ServerShutdown is the data of server.shutdown.
type ServerShutdown struct {
	In Seconds `json:"in_s"`
}

// Event is a notification: its name and the data of that name.
type Event struct {
	Name string `json:"event"`
	Data any    `json:"data"`
}
