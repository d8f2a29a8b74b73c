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
	Codes  []Code       // its error codes besides those that every method may answer
}

// Notification is one event that the server sends.
type Notification struct {
	Name  string
	Data  reflect.Type
	About string
}

// Methods is every method the server has, in the order of the reference.
func Methods() []Method { return methods }

// IsMethod reports whether a method has this name.
func IsMethod(name string) bool {
	return slices.ContainsFunc(methods, func(m Method) bool { return m.Name == name })
}

// commonCodes are the error codes that every method may answer.
var commonCodes = []Code{InvalidRequest, InvalidParams, RequestTooLarge, Forbidden, RateLimited, ShuttingDown, InternalError, NodeUnreachable, DirectoryUnavailable}

// CodesOf returns every error code that a method may answer.
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
	method[SessionCreate, SessionCreated]("session.create", "Opens a session: a shell with its own environment, working directory and processes. With `terminal` it also opens a terminal in it, as term.open does.",
		SessionExists, MaxSessionsReached, ShellNotFound, ShellNotAllowed, ShellFailed, WorkingDirNotFound, LimitExceeded, NotSupported),
	method[SessionRef, SessionInfo]("session.info", "Describes a session; an ended one stays readable for the retention time.",
		SessionNotFound, SessionLost),
	method[SessionList, Sessions]("session.list", "Lists the principal's sessions; an admin may list another principal's or everybody's."),
	method[SessionDestroy, Destroyed]("session.destroy", "Ends a session and answers once all its processes are gone. Repeating it gives the same answer.",
		SessionNotFound, SessionLost),
	method[SessionRename, Session]("session.rename", "Gives a session another name.",
		SessionNotFound, SessionLost, SessionTerminated, SessionExists),
	method[SessionUpdate, SessionInfo]("session.update", "Changes a session's labels and its timeouts. What is absent stays as it is. Commands that have been requested keep their time limit.",
		SessionNotFound, SessionLost, SessionTerminated),
	method[SessionRef, Session]("session.reset", "Replaces the shell by a fresh one, with the working directory and environment from the session's creation. Running work is cancelled, and processes end.",
		SessionNotFound, SessionLost, SessionTerminated, ShellFailed, LimitExceeded),
	method[SessionRef, None]("session.touch", "Restarts the idle clock.",
		SessionNotFound, SessionLost, SessionTerminated),
	method[SessionRef, SessionInfo]("session.watch", "Subscribes this connection to everything that happens in a session.",
		SessionNotFound, SessionLost, SessionTerminated, LimitExceeded),
	method[SessionRef, None]("session.unwatch", "Ends a session.watch.",
		SessionNotFound, SessionLost),
	method[SessionRef, Located]("session.locate", "Tells which node of a cluster has the session, and at which address clients reach that node without another one in between. On a single node it is that node.",
		SessionNotFound, SessionLost),
	method[SessionMove, SessionMoved]("session.move", "Moves an idle session to another node of the cluster. Its id, its name and its ended commands stay as they are; clients need not know. Commands that are sent meanwhile run there. If it is on that node already, nothing is done.",
		SessionNotFound, SessionLost, SessionTerminated, SessionBusy, MaxSessionsReached, ShuttingDown, NotSupported, ShellNotFound, ShellNotAllowed, ShellFailed, LimitExceeded),

	method[ExecRun, ExecResult]("exec.run", "Runs a command in the session's shell and answers with its output and exit code. A command that fails is a result, not an error.",
		SessionNotFound, SessionLost, SessionTerminated, SessionBusy, WorkingDirNotFound, ShellFailed, LimitExceeded, MaxSessionsReached),
	method[ExecStream, StreamOpened]("exec.stream", "Runs a command like exec.run, answers at once and sends its output as it arrives: `exec.output` events, then one `exec.exit`.",
		SessionNotFound, SessionLost, SessionTerminated, SessionBusy, WorkingDirNotFound, ShellFailed, LimitExceeded, MaxSessionsReached),
	method[ExecWait, ExecResult]("exec.wait", "Waits for a command and returns its output from an offset on, in the shape of exec.run. With `timeout_s` or `yield_ms` it answers after that time at the latest, with `running: true` and the output so far; the command goes on.",
		ExecNotFound, SessionLost, StreamNotFound),
	method[ExecInput, InputTaken]("exec.input", "Writes to the standard input of a command started with interactive_stdin.",
		ExecNotFound, SessionLost, StdinClosed, LimitExceeded, OffsetMismatch),
	method[ExecCancel, ExecCancelled]("exec.cancel", "Ends a running command, or removes a queued one from the queue; the session keeps its state. With `signal` it sends only that signal, to the processes that the table under [Signals](#signals) names, and answers at once. If nothing runs, `cancelled` is false.",
		ExecNotFound, SessionNotFound, SessionLost, SessionTerminated),
	method[ExecAttach, StreamOpened]("exec.attach", "Replays a command's output from an offset and follows it to its exec.exit. It also works after the end.",
		ExecNotFound, SessionLost, StreamNotFound, LimitExceeded),
	method[SessionRef, Execs]("exec.list", "Lists a session's latest 200 commands, oldest first: waiting ones, the running one, and ended ones within the retention time. It has the first 4 KiB of each text.",
		SessionNotFound, SessionLost),
	method[ExecDetach, None]("exec.detach", "Stops sending this connection the output of a command. The command goes on.",
		ExecNotFound, SessionLost),

	method[ProcessStart, ProcessStarted]("process.start", "Starts a background process from the session's current state, without changing it.",
		SessionNotFound, SessionLost, SessionTerminated, WorkingDirNotFound, ShellFailed, LimitExceeded, MaxSessionsReached),
	method[SessionRef, Processes]("process.list", "Lists a session's processes, including ended ones within the retention time.",
		SessionNotFound, SessionLost),
	method[ProcessRef, ProcessInfo]("process.info", "Describes a process.",
		ProcessNotFound, SessionLost),
	method[ProcessLogs, Logs]("process.logs", "Returns a process's output from an offset on; with `follow`, later output comes as process.output events.",
		ProcessNotFound, SessionLost, StreamNotFound, LimitExceeded),
	method[ProcessRef, None]("process.detach", "Ends a process.logs with `follow`.",
		ProcessNotFound, SessionLost),
	method[ProcessInput, InputTaken]("process.input", "Writes to the standard input of a process started with `stdin: \"open\"`.",
		ProcessNotFound, SessionLost, StdinClosed, LimitExceeded, OffsetMismatch),
	method[ProcessKill, ProcessInfo]("process.kill", "Ends a process and its whole tree, and answers when they are gone. With `signal` it sends only that signal and answers at once.",
		ProcessNotFound, SessionLost),
	method[ProcessWait, WaitResult]("process.wait", "Waits until a process exits, listens, prints or answers. After a timeout, or if the process ends before the condition, `met` is false. A viewer may wait only for `exit` and `output`.",
		ProcessNotFound, SessionLost, LimitExceeded),

	method[TermOpen, TermOpened]("term.open", "Opens a terminal with the session's current state and attaches this connection to it: its output comes as `term.output` events, then one `term.exit`. Without a command it runs the session's shell, interactive.",
		SessionNotFound, SessionLost, SessionTerminated, WorkingDirNotFound, ShellFailed, LimitExceeded, MaxSessionsReached),
	method[TermInput, InputTaken]("term.input", "Types into a terminal. An attached connection without control may not.",
		TermNotFound, SessionLost, StdinClosed, LimitExceeded, OffsetMismatch),
	method[TermResize, None]("term.resize", "Reports the size of this client's window. The terminal gets that size. An attached connection without control may not.",
		TermNotFound, SessionLost),
	method[TermClose, TermInfo]("term.close", "Ends a terminal and everything that was started in it (HUP, TERM, KILL), and answers when it is gone.",
		TermNotFound, SessionLost),
	method[TermAttach, TermAttached]("term.attach", "Replays a terminal's output from an offset, or its screen, and follows it to its term.exit. It also works after the end. In `control` it takes over: the client that had control gets `term.control` and watches from then on. A second attach on a connection replaces the first.",
		TermNotFound, SessionLost, StreamNotFound, LimitExceeded),
	method[TermRef, None]("term.detach", "Stops sending this connection the output of a terminal. The terminal goes on.",
		TermNotFound, SessionLost),
	method[SessionRef, Terminals]("term.list", "Lists a session's terminals, including ended ones within the retention time.",
		SessionNotFound, SessionLost),
	method[TermRef, TermSnapshot]("term.snapshot", "Returns a terminal's screen as lines of text, with the cursor.",
		TermNotFound, SessionLost),

	method[ShareCreate, ShareCreated]("share.create", "Makes a link to a session, or to one terminal of it, for people without a token: to watch, or also to type. The link ends when it expires or is revoked, when the token that made it is revoked, or when its session is forgotten.",
		SessionNotFound, SessionLost, SessionTerminated, TermNotFound, LimitExceeded),
	method[SessionRef, Shares]("share.list", "Lists a session's links, oldest first, with the number of connections of each; never their tokens.",
		SessionNotFound, SessionLost),
	method[ShareRef, None]("share.revoke", "Ends a link and disconnects its guests.",
		ShareNotFound, SessionLost),
	method[RecordingList, Recordings]("recording.list", "Lists the principal's latest 1,000 recordings, oldest first: those in progress, and ended ones as long as they are kept."),
	method[RecordingRef, Recording]("recording.info", "Describes a recording.",
		RecordingNotFound),
	method[RecordingRef, None]("recording.delete", "Removes a recording; a recording in progress ends. Only an admin may remove one that the server's policy demanded.",
		RecordingNotFound),

	method[StreamAck, None]("stream.ack", "Acknowledges a stream that this client opened or attached with `window_bytes`, up to an offset: the server may send more. The offset only moves forward. For any other stream it has no effect."),

	method[None, Pong]("system.ping", "Answers with the server's epoch, to show that the server is there."),
	method[Drain, Drained]("system.drain", "Makes the server, or another node of its cluster, refuse new sessions, and end when the last one has ended; live sessions go on. For admins."),
	method[SystemStats, Stats]("system.stats", "Counts sessions, commands, processes and terminals: of all nodes of a cluster, or of one."),
	method[None, Nodes]("system.nodes", "Lists the nodes of the cluster; on a single node that node alone."),
	method[None, Capabilities]("system.capabilities", "Describes what the server can do, and its bounds."),
}

var events = []Notification{
	event[SessionState]("session.state", "A session changed its state."),
	event[SessionExpiring]("session.expiring", "A session will soon end because it is idle; session.touch prevents it."),
	event[ExecStarted]("exec.started", "A command began."),
	event[Output]("exec.output", "A piece of a command's output."),
	event[ExecExit]("exec.exit", "A command ended; the last event of its stream."),
	event[ProcessInfo]("process.started", "A background process began."),
	event[Output]("process.output", "A piece of a background process's output."),
	event[ProcessInfo]("process.exit", "A background process ended; the last event of its stream."),
	event[TermInfo]("term.opened", "A terminal was opened."),
	event[Output]("term.output", "A piece of a terminal's output, or with `snapshot` its screen."),
	event[TermResized]("term.resized", "A terminal has another size."),
	event[TermViewers]("term.viewers", "A client attached to a terminal or left it, or control changed: who is there now."),
	event[TermControl]("term.control", "Another client took control of a terminal from this one, or this one has control again."),
	event[TermCommand]("term.command", "A command ended in a terminal whose shell has our marks."),
	event[TermInfo]("term.exit", "A terminal ended; the last event of its stream."),
	event[StreamStarted]("stream.started", "The number of a stream in binary frames, if no answer gave it."),
	event[InputRefused]("input.refused", "Input that came in a binary frame was not taken."),
	event[StreamGap]("stream.gap", "Bytes of a stream that this connection will not get: the ring no longer has them, or the client was too slow."),
	event[ServerShutdown]("server.shutdown", "The server ends; connections close with 1012."),
}
