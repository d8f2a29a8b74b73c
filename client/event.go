package client

import (
	"cmp"
	"encoding/base64"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

// EventType says what an Event is.
type EventType string

// The types of events. The comments name the fields that an event of the type has.
const (
	EventStart    EventType = "start"    // a command was accepted: Command, ExecID, Offset
	EventStdout   EventType = "stdout"   // Offset, Data
	EventStderr   EventType = "stderr"   // Offset, Data
	EventData     EventType = "data"     // output of a terminal: Offset, Data, Replay, Snapshot
	EventGap      EventType = "gap"      // bytes are gone: From, Offset
	EventComplete EventType = "complete" // a command has ended: Result, Exit
	EventExit     EventType = "exit"     // a process or a terminal has ended: Process or Terminal
	EventControl  EventType = "control"  // this client has control of the terminal from now on, or no longer: Control
	EventResized  EventType = "resized"  // a terminal has another size: Resized
	EventCommand  EventType = "command"  // a command has ended in a terminal whose shell reports that: Done
)

// Event is a piece of output, or something else that happened to a command, a process or a terminal.
type Event struct {
	Type EventType

	Offset int64  // of Data's first byte in the stream, stdout and stderr counted together; where the output goes on after a gap or a snapshot
	Data   []byte // the exact bytes; a character may be divided between two events
	From   int64  // the bytes from From to Offset are gone: the server no longer had them when this client could read them

	Replay   bool // output from before the attach, to which a terminal emulator must not answer
	Snapshot bool // Data is not output: it makes a terminal look like this one

	Command, ExecID string
	Result          *ExecResult
	Exit            *protocol.ExecExit // the end as it is on the wire
	Process         *protocol.ProcessInfo
	Terminal        *protocol.TermInfo
	Control         *protocol.TermControl
	Resized         *protocol.TermResized
	Done            *protocol.TermCommand
}

// ends reports whether an event is the last one of its stream.
func (e *Event) ends() bool { return e.Type == EventComplete || e.Type == EventExit }

// isOutput reports whether an event is of interest only to the reader of its stream.
func (e *Event) isOutput() bool {
	switch e.Type {
	case EventStdout, EventStderr, EventData, EventGap:
		return true
	}
	return false
}

// output is the data of exec.output, process.output and term.output as it arrives.
type output struct {
	StreamID string `json:"stream_id"`
	Offset   int64  `json:"offset"`
	Stream   string `json:"stream"`
	Data     string `json:"data"`
	Encoding string `json:"encoding"`
	Replay   bool   `json:"replay"`
	Snapshot bool   `json:"snapshot"`
}

// readEvent decodes an event and says which stream it belongs to. The Type of an event that belongs to no stream is "".
func readEvent(name string, data jsontext.Value) (e Event, stream string, err error) {
	decode := func(into any) { err = json.Unmarshal(data, into) }
	switch name {
	case "exec.output", "process.output", "term.output":
		var o output
		decode(&o)
		e = Event{Type: typeOfOutput(o.Stream), Offset: o.Offset, Replay: o.Replay, Snapshot: o.Snapshot, Data: []byte(o.Data)}
		if err == nil && o.Encoding == protocol.Base64 {
			e.Data, err = base64.StdEncoding.DecodeString(o.Data)
		}
		stream = o.StreamID
	case "stream.gap":
		var g protocol.StreamGap
		decode(&g)
		e, stream = Event{Type: EventGap, From: g.From, Offset: g.To}, g.StreamID
	case "exec.exit":
		e = Event{Type: EventComplete, Exit: new(protocol.ExecExit)}
		decode(e.Exit)
		stream = e.Exit.StreamID
	case "process.exit":
		e = Event{Type: EventExit, Process: new(protocol.ProcessInfo)}
		decode(e.Process)
		stream = e.Process.StreamID
	case "term.exit":
		e = Event{Type: EventExit, Terminal: new(protocol.TermInfo)}
		decode(e.Terminal)
		stream = e.Terminal.StreamID
	case "term.control":
		e = Event{Type: EventControl, Control: new(protocol.TermControl)}
		decode(e.Control)
		stream = e.Control.StreamID
	case "term.command":
		e = Event{Type: EventCommand, Done: new(protocol.TermCommand)}
		decode(e.Done)
		stream = e.Done.StreamID
	case "term.resized": // has no stream_id; see deliverEvent
		e = Event{Type: EventResized, Resized: new(protocol.TermResized)}
		decode(e.Resized)
	}
	return e, stream, err
}

func typeOfOutput(stream string) EventType {
	switch cmp.Or(stream, "stdout") {
	case "stderr":
		return EventStderr
	case "tty":
		return EventData
	}
	return EventStdout
}
