package protocol

import (
	"errors"
	"fmt"
	"net/http"
)

// Version is the protocol's name on the wire: the WebSocket subprotocol.
const Version = "trl.v1"

// Code names an error. The list is closed and append-only: clients branch on it.
type Code string

// The codes, in the order of PROTOCOL.md.
const (
	InvalidRequest     Code = "INVALID_REQUEST"
	UnknownMethod      Code = "UNKNOWN_METHOD"
	InvalidParams      Code = "INVALID_PARAMS"
	RequestTooLarge    Code = "REQUEST_TOO_LARGE"
	AuthFailed         Code = "AUTH_FAILED"
	Forbidden          Code = "FORBIDDEN"
	RateLimited        Code = "RATE_LIMITED"
	SessionNotFound    Code = "SESSION_NOT_FOUND"
	SessionExists      Code = "SESSION_EXISTS"
	SessionBusy        Code = "SESSION_BUSY"
	SessionTerminated  Code = "SESSION_TERMINATED"
	SessionLost        Code = "SESSION_LOST"
	MaxSessionsReached Code = "MAX_SESSIONS_REACHED"
	ShellNotFound      Code = "SHELL_NOT_FOUND"
	ShellNotAllowed    Code = "SHELL_NOT_ALLOWED"
	ShellFailed        Code = "SHELL_FAILED"
	WorkingDirNotFound Code = "WORKING_DIR_NOT_FOUND"
	ExecNotFound       Code = "EXEC_NOT_FOUND"
	ProcessNotFound    Code = "PROCESS_NOT_FOUND"
	TermNotFound       Code = "TERM_NOT_FOUND"
	StreamNotFound     Code = "STREAM_NOT_FOUND"
	StdinClosed        Code = "STDIN_CLOSED"
	LimitExceeded      Code = "LIMIT_EXCEEDED"
	NotSupported       Code = "NOT_SUPPORTED"
	ShuttingDown       Code = "SHUTTING_DOWN"
	InternalError      Code = "INTERNAL_ERROR"
	ShareNotFound      Code = "SHARE_NOT_FOUND"
	RecordingNotFound  Code = "RECORDING_NOT_FOUND"

	NodeUnreachable      Code = "NODE_UNREACHABLE"
	DirectoryUnavailable Code = "DIRECTORY_UNAVAILABLE"

	OffsetMismatch Code = "OFFSET_MISMATCH"
)

// codes is every Code with its HTTP status and its meaning for clients, in the order of PROTOCOL.md.
var codes = []struct {
	Code    Code
	Status  int
	Meaning string
}{
	{InvalidRequest, http.StatusBadRequest, "The frame is not a request: not JSON, no `method`, no usable `id`, an unknown top-level field. Nothing was done."},
	{UnknownMethod, http.StatusNotFound, "There is no such method."},
	{InvalidParams, http.StatusBadRequest, "`details.field` names the parameter that is unknown, missing, of the wrong type or out of range."},
	{RequestTooLarge, http.StatusRequestEntityTooLarge, "The request exceeds a size limit of the server."},
	{AuthFailed, http.StatusUnauthorized, "The token is missing, wrong or expired."},
	{Forbidden, http.StatusForbidden, "The principal's role, or the share link that it came with, does not allow this."},
	{RateLimited, http.StatusTooManyRequests, "Too many requests, or bytes of them, are in flight on this connection or of this principal; send it again after an answer. Requests that end or steer work (cancel, kill, destroy, reset, close, input, resize, detach, unwatch, ack) have a separate bound."},
	{SessionNotFound, http.StatusNotFound, "No such session, or it is another principal's."},
	{SessionExists, http.StatusConflict, "A live session has this name."},
	{SessionBusy, http.StatusConflict, "A command runs (`details.exec_id`) and `when_busy` is `reject`, or the queue is full; or a session cannot be moved, because of what `details.reason` says."},
	{SessionTerminated, http.StatusConflict, "The session has ended; `details.reason` says why."},
	{SessionLost, http.StatusConflict, "The session belonged to an earlier epoch of the server and is gone, or the server's keeper has just been killed, and every session with it."},
	{MaxSessionsReached, http.StatusTooManyRequests, "The server's or the principal's bound on live sessions is reached; `details.limit` is the number."},
	{ShellNotFound, http.StatusNotFound, "The shell does not exist."},
	{ShellNotAllowed, http.StatusForbidden, "The shell is not on the server's list."},
	{ShellFailed, http.StatusInternalServerError, "The shell could not be started or restored."},
	{WorkingDirNotFound, http.StatusNotFound, "`working_dir` cannot be entered."},
	{ExecNotFound, http.StatusNotFound, "No such command, or it is another principal's, or its retention time is over."},
	{ProcessNotFound, http.StatusNotFound, "No such process, or it is another principal's, or its retention time is over."},
	{TermNotFound, http.StatusNotFound, "No such terminal, or it is another principal's."},
	{StreamNotFound, http.StatusNotFound, "No such stream, or `offset` lies beyond its end."},
	{StdinClosed, http.StatusConflict, "The standard input is closed: never opened, at its EOF, or the command has ended."},
	{LimitExceeded, http.StatusTooManyRequests, "A bound of the session or the server was reached; `details` says which."},
	{NotSupported, http.StatusNotImplemented, "The request is valid, but this server cannot do it."},
	{ShuttingDown, http.StatusServiceUnavailable, "The server is ending and accepts nothing new."},
	{InternalError, http.StatusInternalServerError, "A bug or failure in the server; its log has the cause."},
	{ShareNotFound, http.StatusNotFound, "No such share link, or it is another principal's, or it was revoked or has expired."},
	{RecordingNotFound, http.StatusNotFound, "No such recording, or it is another principal's, or it was removed."},
	{NodeUnreachable, http.StatusServiceUnavailable, "The session is on another node of the cluster (`details.node`), which cannot be reached now. Nothing was done; send the request again after `details.retry_after_ms`."},
	{DirectoryUnavailable, http.StatusServiceUnavailable, "The directory of the cluster does not answer, and the server needs it to find or to claim a name or a request key. Nothing was done; send the request again after `details.retry_after_ms`."},
	{OffsetMismatch, http.StatusConflict, "The `offset` of input is not where the input so far ends, which is `details.input_offset`. Nothing was taken."},
}

// Status returns the HTTP status of an answer with this code.
func (c Code) Status() int {
	for _, known := range codes {
		if known.Code == c {
			return known.Status
		}
	}
	return http.StatusInternalServerError
}

// Error is a failure as a client may see it. Its cause is only for errors.Is and the log.
type Error struct {
	Code    Code           `json:"code"`
	Message string         `json:"message"`
	Details map[string]any `json:"details,omitzero"`

	cause error
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap returns the cause, which clients never see.
func (e *Error) Unwrap() error { return e.cause }

// Errorf makes an Error. An error formatted with %w becomes its cause and part of the message. Use %w only for causes that a client may read;
// pass others to AsError or WithCause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if _, several := err.(interface{ Unwrap() []error }); several {
		cause = err
	}
	return &Error{Code: code, Message: err.Error(), cause: cause}
}

// InvalidParam is INVALID_PARAMS about one field, named in details.field.
func InvalidParam(field, format string, args ...any) *Error {
	return Errorf(InvalidParams, format, args...).With("field", field)
}

// With adds a detail to e and returns it.
func (e *Error) With(key string, v any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[key] = v
	return e
}

// WithCause sets the cause, which only the log shows, and returns e.
func (e *Error) WithCause(err error) *Error {
	e.cause = err
	return e
}

// AsError finds the Error in err's chain. An err without one becomes INTERNAL_ERROR with a message that reveals nothing.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e != nil {
		return e
	}
	return &Error{Code: InternalError, Message: "internal error", cause: err}
}
