package protocol

import (
	"reflect"
	"slices"
)

// Method is one thing a client can ask for.
type Method struct {
	Name   string
	Params reflect.Type // a struct, for DecodeParams
	Result reflect.Type // a struct, the data of its success
	About  string       // one sentence
	Codes  []Code       // what it may answer beside the codes that every method may
}

// Notification is one event that the server sends.
type Notification struct {
	Name  string
	Data  reflect.Type
	About string
}

// Methods is every method the server has, in the order of the reference.
func Methods() []Method { return methods }

// Events is every event the server sends, in the order of the reference.
func Events() []Notification { return events }

// commonCodes is what every method may answer.
var commonCodes = []Code{InvalidRequest, InvalidParams, RequestTooLarge, Forbidden, RateLimited, ShuttingDown, InternalError}

// CodesOf is every code that a method may answer.
func CodesOf(name string) []Code {
	for _, m := range methods {
		if m.Name == name {
			return slices.Concat(m.Codes, commonCodes)
		}
	}
	return nil
}

func method[P, R any](name, about string, codes ...Code) Method {
	return Method{name, reflect.TypeFor[P](), reflect.TypeFor[R](), about, codes}
}

func event[D any](name, about string) Notification {
	return Notification{name, reflect.TypeFor[D](), about}
}

var methods = []Method{
	method[SessionCreate, Session]("session.create", "Opens a session: a shell with its own environment, working directory and processes.",
		SessionExists, MaxSessionsReached, ShellNotFound, ShellNotAllowed, ShellFailed, WorkingDirNotFound, LimitExceeded, NotSupported),
	method[SessionRef, SessionInfo]("session.info", "Tells all about a session; an ended one stays readable for the retention time.",
		SessionNotFound, SessionLost),
	method[SessionList, Sessions]("session.list", "Lists the principal's sessions; for an admin, those of another one or everybody's."),
	method[SessionDestroy, Destroyed]("session.destroy", "Ends a session and answers once every process of it is gone. Repeating it gives the same answer.",
		SessionNotFound, SessionLost),
	method[SessionRename, Session]("session.rename", "Gives a session another name.",
		SessionNotFound, SessionLost, SessionTerminated, SessionExists),
	method[SessionRef, Session]("session.reset", "Replaces the shell by a fresh one with the working directory and environment the session was created with. Running work is cancelled, processes end.",
		SessionNotFound, SessionLost, SessionTerminated, ShellFailed, LimitExceeded),
	method[SessionRef, None]("session.touch", "Restarts the idle clock.",
		SessionNotFound, SessionLost, SessionTerminated),
	method[SessionRef, SessionInfo]("session.watch", "Subscribes this connection to everything that happens in a session.",
		SessionNotFound, SessionLost, SessionTerminated, LimitExceeded),
	method[SessionRef, None]("session.unwatch", "Ends what session.watch began.",
		SessionNotFound, SessionLost),

	method[ExecRun, ExecResult]("exec.run", "Runs a command in the session's shell and answers with its output and exit code. A command that fails is a result, not an error.",
		SessionNotFound, SessionLost, SessionTerminated, SessionBusy, WorkingDirNotFound, ShellFailed, LimitExceeded, MaxSessionsReached),
	method[ExecStream, StreamOpened]("exec.stream", "Runs a command like exec.run, answers at once and sends its output as it comes: `exec.output` events, then one `exec.exit`.",
		SessionNotFound, SessionLost, SessionTerminated, SessionBusy, WorkingDirNotFound, ShellFailed, LimitExceeded, MaxSessionsReached),
	method[ExecWait, ExecResult]("exec.wait", "Waits for a command and returns its output from an offset on, in the shape of exec.run. With `timeout_s` or `yield_ms` it answers with `running: true` and what there is when that time is over; the command goes on.",
		ExecNotFound, SessionLost, StreamNotFound),
	method[ExecInput, None]("exec.input", "Writes to the standard input of a command started with interactive_stdin.",
		ExecNotFound, SessionLost, StdinClosed, LimitExceeded),
	method[ExecCancel, ExecCancelled]("exec.cancel", "Ends a running command, or takes a queued one out of the queue; the session keeps its state. With `signal` just that signal is sent, to whom the table under [Signals](#signals) says, and the answer comes at once. Nothing running is `cancelled: false`.",
		ExecNotFound, SessionNotFound, SessionLost, SessionTerminated),
	method[ExecAttach, StreamOpened]("exec.attach", "Replays a command's output from an offset and follows it to its exec.exit, also after the end.",
		ExecNotFound, SessionLost, StreamNotFound, LimitExceeded),
	method[SessionRef, Execs]("exec.list", "Lists a session's latest 200 commands, oldest first: those that wait, the one that runs, and ended ones within the retention time. Of each text the first 4 KiB.",
		SessionNotFound, SessionLost),
	method[ExecDetach, None]("exec.detach", "Stops sending this connection the output of a command, which runs on.",
		ExecNotFound, SessionLost),

	method[ProcessStart, ProcessStarted]("process.start", "Starts a background process from the session's current state, without changing it.",
		SessionNotFound, SessionLost, SessionTerminated, WorkingDirNotFound, ShellFailed, LimitExceeded, MaxSessionsReached),
	method[SessionRef, Processes]("process.list", "Lists a session's processes, ended ones within the retention time too.",
		SessionNotFound, SessionLost),
	method[ProcessRef, ProcessInfo]("process.info", "Tells all about a process.",
		ProcessNotFound, SessionLost),
	method[ProcessLogs, Logs]("process.logs", "Returns a process's output from an offset on; with `follow` the rest comes as process.output events.",
		ProcessNotFound, SessionLost, StreamNotFound, LimitExceeded),
	method[ProcessRef, None]("process.detach", "Ends what process.logs with `follow` began.",
		ProcessNotFound, SessionLost),
	method[ProcessInput, None]("process.input", "Writes to the standard input of a process started with `stdin: \"open\"`.",
		ProcessNotFound, SessionLost, StdinClosed, LimitExceeded),
	method[ProcessKill, ProcessInfo]("process.kill", "Ends a process and its whole tree and answers when it is gone. With `signal` just that signal is sent and the answer comes at once.",
		ProcessNotFound, SessionLost),
	method[ProcessWait, WaitResult]("process.wait", "Waits until a process exits, listens, prints or answers. A timeout, and an end before the condition, are `met: false`. A viewer waits for `exit` and `output` only.",
		ProcessNotFound, SessionLost, LimitExceeded),

	method[TermOpen, TermOpened]("term.open", "Opens a terminal in the session's current state and attaches this connection to it: its output comes as `term.output` events, then one `term.exit`. Without a command it runs the session's shell, interactive.",
		SessionNotFound, SessionLost, SessionTerminated, WorkingDirNotFound, ShellFailed, LimitExceeded, MaxSessionsReached),
	method[TermInput, None]("term.input", "Types. A connection that is attached and not in control may not.",
		TermNotFound, SessionLost, StdinClosed, LimitExceeded),
	method[TermResize, None]("term.resize", "Says how large this client's window is. The terminal takes that size. A connection that is attached and not in control may not.",
		TermNotFound, SessionLost),
	method[TermClose, TermInfo]("term.close", "Ends a terminal and all that was started in it, HUP, TERM, KILL, and answers when it is gone.",
		TermNotFound, SessionLost),
	method[TermAttach, TermAttached]("term.attach", "Replays a terminal's output from an offset, or its screen, and follows it to its term.exit, also after the end. In `control` it takes over: the client that typed before is told `term.control` and looks on. A second attach on one connection takes the place of the first.",
		TermNotFound, SessionLost, StreamNotFound, LimitExceeded),
	method[TermRef, None]("term.detach", "Stops sending this connection the output of a terminal, which runs on.",
		TermNotFound, SessionLost),
	method[SessionRef, Terminals]("term.list", "Lists a session's terminals, ended ones within the retention time too.",
		SessionNotFound, SessionLost),
	method[TermRef, TermSnapshot]("term.snapshot", "Returns a terminal's screen as lines of text, with the cursor.",
		TermNotFound, SessionLost),

	method[ShareCreate, ShareCreated]("share.create", "Makes a link to a session, or to one terminal of it, for people without a token of their own: to look, or to type too. It ends when it expires, is revoked, the token that it was made with is, or its session is forgotten.",
		SessionNotFound, SessionLost, SessionTerminated, TermNotFound, LimitExceeded),
	method[SessionRef, Shares]("share.list", "Lists a session's links, oldest first, with how many use each; never their tokens.",
		SessionNotFound, SessionLost),
	method[ShareRef, None]("share.revoke", "Ends a link; who uses it is disconnected.",
		ShareNotFound, SessionLost),
	method[RecordingList, Recordings]("recording.list", "Lists the principal's latest 1,000 recordings, oldest first: those that are being made, and ended ones as long as they are kept."),
	method[RecordingRef, Recording]("recording.info", "Tells all about a recording.",
		RecordingNotFound),
	method[RecordingRef, None]("recording.delete", "Removes a recording; one that is being made ends with that. What the server's policy demanded, only an admin may remove.",
		RecordingNotFound),

	method[StreamAck, None]("stream.ack", "Says how far this client has got with a stream that it opened or attached with `window_bytes`: more may be sent. Only forward; for any other stream it is nothing."),

	method[None, Pong]("system.ping", "Tells that the server is there, and its epoch."),
	method[Drain, Drained]("system.drain", "Has the server refuse new sessions and end when none lives any more; those that live go on. An admin's."),
	method[None, Stats]("system.stats", "Counts what the server has."),
	method[None, Capabilities]("system.capabilities", "Tells what the server can do and where its bounds are."),
}

var events = []Notification{
	event[SessionState]("session.state", "A session moved from one state to another."),
	event[SessionExpiring]("session.expiring", "A session ends of idleness soon; session.touch prevents it."),
	event[ExecStarted]("exec.started", "A command began."),
	event[Output]("exec.output", "A piece of a command's output."),
	event[ExecExit]("exec.exit", "A command ended; the last event of its stream."),
	event[ProcessInfo]("process.started", "A background process began."),
	event[Output]("process.output", "A piece of a background process's output."),
	event[ProcessInfo]("process.exit", "A background process ended; the last event of its stream."),
	event[TermInfo]("term.opened", "A terminal was opened."),
	event[Output]("term.output", "A piece of a terminal's output, or with `snapshot` its screen."),
	event[TermResized]("term.resized", "A terminal has another size."),
	event[TermViewers]("term.viewers", "A client came to a terminal, or left it, or control of it passed on: who is there now."),
	event[TermControl]("term.control", "Another client took control of a terminal from this one, or left it to this one."),
	event[TermCommand]("term.command", "A command ended in a terminal whose shell has our marks."),
	event[TermInfo]("term.exit", "A terminal ended; the last event of its stream."),
	event[StreamStarted]("stream.started", "Which number a stream has, where no answer tells: with binary frames only."),
	event[StreamGap]("stream.gap", "Bytes of a stream that this connection will not get: the ring no longer has them, or the client was too slow."),
	event[ServerShutdown]("server.shutdown", "The server ends; connections close with 1012."),
}
