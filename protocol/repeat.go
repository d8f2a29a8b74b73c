package protocol

// Repeat says whether a client may send a request again after it has lost the connection on which it waited for the answer. Our clients have this table
// from here.
type Repeat string

const (
	// RepeatNever: the caller is told that the outcome is unknown.
	RepeatNever Repeat = "never"
	// RepeatAlways: the request changes nothing, or to repeat it does nothing more.
	RepeatAlways Repeat = "always"
	// RepeatKeyed: the request is repeated to a server of the same epoch if it has a request_key and, except for session.create, a session_id. A server
	// of another epoch knows no key, but may have a session of the same name.
	RepeatKeyed Repeat = "keyed"
	// RepeatEnd: the request is repeated if it names the work by exec_id or process_id and has no signal. To end work twice does nothing more.
	RepeatEnd Repeat = "end"
)

// repeats has every method.
var repeats = map[string]Repeat{
	"session.create": RepeatKeyed, "exec.run": RepeatKeyed, "exec.stream": RepeatKeyed, "process.start": RepeatKeyed, "term.open": RepeatKeyed,

	"exec.cancel": RepeatEnd, "process.kill": RepeatEnd,

	"session.info": RepeatAlways, "session.list": RepeatAlways, "session.watch": RepeatAlways, "session.unwatch": RepeatAlways,
	"session.touch": RepeatAlways, "session.destroy": RepeatAlways, "session.locate": RepeatAlways, "session.move": RepeatAlways,
	"exec.list": RepeatAlways, "exec.wait": RepeatAlways, "exec.attach": RepeatAlways, "exec.detach": RepeatAlways,
	"process.list": RepeatAlways, "process.info": RepeatAlways, "process.logs": RepeatAlways, "process.wait": RepeatAlways, "process.detach": RepeatAlways,
	"term.list": RepeatAlways, "term.attach": RepeatAlways, "term.detach": RepeatAlways, "term.snapshot": RepeatAlways, "term.resize": RepeatAlways,
	"term.close": RepeatAlways,
	"share.list": RepeatAlways, "share.revoke": RepeatAlways, "recording.list": RepeatAlways, "recording.info": RepeatAlways,
	"stream.ack": RepeatAlways, "system.ping": RepeatAlways, "system.stats": RepeatAlways, "system.nodes": RepeatAlways, "system.capabilities": RepeatAlways,

	"session.rename": RepeatNever, "session.update": RepeatNever, "session.reset": RepeatNever, "exec.input": RepeatNever, "process.input": RepeatNever,
	"term.input": RepeatNever, "share.create": RepeatNever, "recording.delete": RepeatNever, "system.drain": RepeatNever,
}

// RepeatOf returns when a client may repeat a method. A method that this version does not know is never repeated.
func RepeatOf(method string) Repeat {
	if r, ok := repeats[method]; ok {
		return r
	}
	return RepeatNever
}
