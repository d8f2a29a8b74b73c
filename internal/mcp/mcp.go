// Package mcp offers the sessions of a gateway to agents, as tools of the Model Context Protocol: over stdio in `trl mcp`, and over HTTP in the
// gateway. The tools work over the Go client, so both share everything but the way in which they connect.
//
// A tool never waits longer than maxYield, because many clients give up after a minute. Work that takes longer goes on, and the answer has its id. The
// output of a tool is one block of text, because some clients show their model only structured content, and others only text.
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"trl/client"
	"trl/internal/buildinfo"
	"trl/protocol"
)

// Config says for whom a server works.
type Config struct {
	// Dial connects to the gateway. Each call of a tool has a connection of its own, because a client has only one stream of an output.
	Dial func(context.Context) (*client.Client, error)
	// Sessions are the sessions that the server made; nil: calls that name no session use the principal's default session.
	Sessions *OwnSessions
	Seen     *Seen
	ReadOnly bool // offer only tools that change nothing
	// CancelStops: a call that the client cancels ends the work that it started. Otherwise it only ends the waiting, for a client whose connection
	// broke looks the same.
	CancelStops bool
	// Recording writes the asciicast of a recording, until the writer returns an error. nil: the client downloads it.
	Recording func(ctx context.Context, c *client.Client, id string, to io.Writer) error
}

const instructions = "Shell sessions on a gateway: directory, variables and background jobs last from one call to the next. " +
	"Work that takes longer than yield_s goes on and is answered with an id for wait, send and stop. " +
	"Start servers and watchers with background: true, and full-screen or interactive programs with tty: true."

var schemas = sdk.NewSchemaCache()

// NewServer returns a server with the tools and resources for one principal.
func NewServer(c Config) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "trl", Title: "trl shell sessions", Version: buildinfo.Version()}, &sdk.ServerOptions{
		Instructions: instructions,
		// The lists never change, and there is nothing else.
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: &sdk.ResourceCapabilities{}},
		SchemaCache:  schemas,
		// What one principal sees is for nobody else, and changes at any time.
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.CacheScope = "private" },
	})
	t := &tools{c}
	if !c.ReadOnly {
		add(t, s, runTool, (*call).run)
	}
	add(t, s, waitTool, (*call).wait)
	if !c.ReadOnly {
		add(t, s, sendTool, (*call).send)
		add(t, s, stopTool, (*call).stop)
	}
	add(t, s, listTool, (*call).list)
	if !c.ReadOnly {
		add(t, s, sessionTool, (*call).session)
	}
	t.addResources(s)
	return s
}

// tools are the tools of one server.
type tools struct{ Config }

// call is one call of a tool.
type call struct {
	*tools
	c        *client.Client
	began    time.Time
	clientIs string // the name of the client's program
	progress func(bytes int64, line string)
}

// arguments are the arguments of a tool that names a session.
type arguments interface{ sessionArgument() string }

// add adds a tool to a server.
func add[In arguments](t *tools, s *sdk.Server, tool *sdk.Tool, f func(*call, context.Context, In) (string, error)) {
	sdk.AddTool(s, tool, func(ctx context.Context, q *sdk.CallToolRequest, in In) (*sdk.CallToolResult, any, error) {
		if err := checkArguments(q.Params.Arguments); err != nil {
			return failure(err), nil, nil
		}
		k, err := t.begin(ctx, q)
		if err != nil {
			return failure(err), nil, nil
		}
		defer k.c.Close()
		text, err := f(k, ctx, in)
		if err != nil {
			if in.sessionArgument() == "" {
				t.Sessions.forget(err)
			}
			return failure(err), nil, nil
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, nil
	})
}

// checkArguments returns an error for JSON that the SDK would read as something else: it takes the last of two members with the same name, and puts
// U+FFFD in the place of what is no UTF-8. A command would run that nobody has written.
func checkArguments(text json.RawMessage) error {
	if len(text) == 0 || jsontext.Value(text).IsValid() {
		return nil
	}
	return protocol.InvalidParam("arguments", "arguments have a name twice, or text that is no UTF-8")
}

// begin connects for a call of a tool.
func (t *tools) begin(ctx context.Context, q *sdk.CallToolRequest) (*call, error) {
	k := &call{tools: t, began: time.Now(), clientIs: nameOf(q.ClientInfo())}
	if token := q.Params.GetProgressToken(); token != nil {
		var last float64
		k.progress = func(bytes int64, line string) {
			last = max(last+1, float64(bytes)) // it must grow with each message
			_ = q.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: last, Message: line})
		}
	}
	var err error
	k.c, err = t.Dial(ctx)
	return k, err
}

func nameOf(i *sdk.Implementation) string {
	if i == nil {
		return ""
	}
	return i.Name
}

// failure is the result for a refused request. A command that fails is no failure.
func failure(err error) *sdk.CallToolResult {
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: failureText(err)}}}
}

// unknownOutcome is the error for work that began, or was accepted, and that the gateway could not bring to its end.
type unknownOutcome struct {
	why        *protocol.Error
	id, output string
}

func (u *unknownOutcome) Error() string { return u.why.Error() }
func (u *unknownOutcome) Unwrap() error { return u.why }

// ref turns the session argument into a reference; without one it is the server's own session, made at the first call.
func (k *call) ref(ctx context.Context, arg string) (protocol.SessionRef, error) {
	switch {
	case arg == "" && k.Sessions != nil:
		id, err := k.Sessions.own(ctx, k.c, k.clientIs)
		return protocol.SessionRef{SessionID: id}, err
	case arg == "":
		return protocol.SessionRef{}, nil
	case kindOf(arg) == sessionKind:
		return protocol.SessionRef{SessionID: arg}, nil
	}
	return protocol.SessionRef{Session: arg}, nil
}

// wasCancelled reports whether the client cancelled this call, and did not just go away.
func (k *call) wasCancelled(ctx context.Context) bool {
	return k.CancelStops && ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled)
}

// The tools. An answer of tools/list stays in a model's context, so each word of them has its price; a test holds the sum within a budget.
var (
	runTool = tool[runArgs]("run", hints{destructive: true, openWorld: true},
		"Run a command in a session's shell. If it is not done after yield_s, it goes on: use wait with the id.")
	waitTool = tool[waitArgs]("wait", hints{readOnly: true},
		"Wait for the end of running work, or for a condition, and get its new output. Ended work can be read, too.")
	sendTool = tool[sendArgs]("send", hints{destructive: true, openWorld: true},
		"Type into a terminal or write to a background process, then wait.")
	stopTool = tool[stopArgs]("stop", hints{destructive: true, idempotent: true},
		"End a command, process or terminal with all its processes. The session stays.")
	listTool = tool[listArgs]("list", hints{readOnly: true},
		"List sessions, or what one session runs and ran, with ids and ports.")
	sessionTool = tool[sessionArgs]("session", hints{destructive: true},
		"Create a session, reset it to a fresh shell, or end it with everything in it.")
)

type runArgs struct {
	Command    string  `json:"command"`
	Session    string  `json:"session,omitempty" jsonschema:"name or id"`
	CWD        string  `json:"cwd,omitempty" jsonschema:"for this command only"`
	TimeoutS   float64 `json:"timeout_s,omitempty" jsonschema:"kill it after this time (0: never)"`
	YieldS     *yield  `json:"yield_s,omitempty" jsonschema:"seconds to wait (20, at most 50)"`
	Background bool    `json:"background,omitempty" jsonschema:"for servers: answer after 1 s"`
	TTY        bool    `json:"tty,omitempty" jsonschema:"in a terminal; the answer is its screen"`
	Stdin      *string `json:"stdin,omitempty" jsonschema:"whole standard input"`
}

type waitArgs struct {
	ID     string `json:"id"`
	YieldS *yield `json:"yield_s,omitempty" jsonschema:"seconds to wait (20, at most 50)"`
	Until  string `json:"until,omitempty" jsonschema:"regex for a line of new output, or 'port N'"`
	Offset *int64 `json:"offset,omitempty" jsonschema:"show output from this byte on, instead of what is new"`
}

type sendArgs struct {
	ID     string `json:"id"`
	Text   string `json:"text,omitempty"`
	Key    string `json:"key,omitempty" jsonschema:"after text: enter, C-c, up, … several with spaces"`
	EOF    bool   `json:"eof,omitempty" jsonschema:"end the input"`
	YieldS *yield `json:"yield_s,omitempty" jsonschema:"(0.3)"`
}

type stopArgs struct {
	ID     string `json:"id"`
	Signal string `json:"signal,omitempty" jsonschema:"send only this, e.g. INT"`
}

type listArgs struct {
	Session string `json:"session,omitempty" jsonschema:"name or id"`
}

type sessionArgs struct {
	Action string            `json:"action"`
	Name   string            `json:"name,omitempty" jsonschema:"or id"`
	CWD    string            `json:"cwd,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
}

func (a runArgs) sessionArgument() string     { return a.Session }
func (a listArgs) sessionArgument() string    { return a.Session }
func (a sessionArgs) sessionArgument() string { return a.Name }
func (a waitArgs) sessionArgument() string    { return a.ID }
func (a sendArgs) sessionArgument() string    { return a.ID }
func (a stopArgs) sessionArgument() string    { return a.ID }

// yield is how many seconds a tool may wait.
type yield float64

// maxYield is below the 60 s after which many clients give up, with time left for a gateway that is just being upgraded.
const maxYield = 50

// duration returns the time to wait. A model that asks for more gets maxYield, and not an error.
func (y *yield) duration(unset float64) time.Duration {
	seconds := unset
	if y != nil {
		seconds = float64(*y)
	}
	return time.Duration(min(max(seconds, 0), maxYield) * float64(time.Second))
}

// hints are the annotations of a tool. Each is sent, because clients take different defaults for those that are absent.
type hints struct{ readOnly, destructive, idempotent, openWorld bool }

func tool[In any](name string, h hints, about string) *sdk.Tool {
	return &sdk.Tool{
		Name: name, Description: about, InputSchema: inputSchema[In](),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: h.readOnly, DestructiveHint: &h.destructive, IdempotentHint: h.idempotent, OpenWorldHint: &h.openWorld},
	}
}

// inputSchema returns the schema of a tool's arguments, without what only costs: null beside each optional type.
func inputSchema[In any]() *jsonschema.Schema {
	s, err := jsonschema.For[In](nil)
	if err != nil {
		panic(err)
	}
	for name, p := range s.Properties {
		if len(p.Types) == 2 && p.Types[0] == "null" {
			p.Type, p.Types = p.Types[1], nil
		}
		if name == "action" {
			p.Enum = []any{"create", "reset", "end"}
		}
	}
	return s
}

var _ json.Marshaler = sdk.ToolAnnotations{} // it writes false, too
