// Package client is the Go client of a trl gateway: sessions, commands, background processes and terminals. Our command line uses it, too.
//
//	c, err := client.Connect(ctx, client.Options{URL: "http://127.0.0.1:7681", Token: token})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	r, err := c.Exec(ctx, "make test", nil)
//
// A [Client] keeps one connection to a gateway. As a [Session] it is the session that [Options] names, "default" if none; [Client.CreateSession] makes
// others. [Session.Exec] returns the result of a command, [Session.ExecStream] its output as it comes, [Session.StartProcess] starts a program in the
// background, [Session.OpenTerminal] opens a terminal. [Client.Call] sends any other request of the protocol. The names and the behaviour are those of
// the clients for TypeScript and Python.
//
// # Lost connections
//
// When the connection is lost (server restart, network), the Client dials again for [Options.Patience], and streams continue at the next byte: every
// byte comes once and in order, or an [EventGap] says which are gone. Requests whose answer was lost are sent again if that does nothing twice: those
// that change nothing, and those that the server knows again by their request_key, such as Exec, ExecStream, StartProcess, OpenTerminal and
// CreateSession. A gateway of another epoch, which was started anew without the sessions, knows no keys; nothing of that kind is sent to it, and the
// caller gets a [*ConnectionLostError] with [OutcomeUnknown]. So do callers of other requests that change something, such as input.
//
// # Contexts
//
// The context of Exec and ExecStream ends the command: when it is done, the command gets TERM, and KILL after a grace, and the caller gets the context's
// cause once the command has ended. All other contexts only end a wait: that of Next, of WaitForPort, WaitForLog and WaitForExit, of StartProcess,
// OpenTerminal and the attaches.
//
// # Memory
//
// Output that nobody reads waits in this program only up to 1 MiB for each stream, and holds up nothing else on the connection. Then the server keeps it
// for a while, and the program that prints it waits.
//
// # Errors
//
// An [*Error] is the server's answer, with Code and Details; [CodeOf], [IsSessionLost] and the other functions look for it in a chain of errors. A
// [*ConnectionLostError], which is [ErrConnectionLost], means that there is no connection; [ErrClosed] that Close was called. A server without room for a
// connection answers LIMIT_EXCEEDED. It answers RATE_LIMITED if too many wrong tokens came from our address, and SHUTTING_DOWN when it ends. After any of
// these a lost connection is still dialled again. A command that fails is a result, and a [*CommandError] only with [ExecOptions.Check]. Only the Next
// methods return io.EOF, after the last event.
//
// # Import path
//
// The module is called trl, a path without a host, so that no go command downloads it: it is not published. A program that uses the client has a copy of
// the source and says where it is:
//
//	require trl v0.0.0
//	replace trl => ./third_party/trl
//
// `go mod vendor` then copies the two packages that are needed, trl/client and trl/protocol, and what they import. When the module gets a public path, it
// changes in go.mod and in the import lines, and nothing else does. Stable, as protocol trl.v1 is, are the exported names of this package, the fields of
// option structs, and the error codes; new fields and codes may come, so use field names in struct literals. Types of trl/protocol are the objects of the
// wire, and only gain fields. A client works with gateways of its own version and of later ones.
package client
