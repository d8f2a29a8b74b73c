package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"regexp"
	"strings"
	"sync"
	"time"

	"trl/client"
)

// options names the gateway: its address and a token.
func options() client.Options {
	g, err := exampleGateway()
	if err != nil {
		log.Fatal(err)
	}
	return client.Options{URL: g.URL, Token: g.Tokens["user"]}
}

// exampleGateway is a real gateway. It ends with the program.
var exampleGateway = sync.OnceValues(func() (*gateway, error) {
	rig, err := theRig()
	if err != nil {
		return nil, err
	}
	return rig.newGateway(nil)
})

// A first program: commands, a server in the background, a session of one's own, output as it comes.
func Example() {
	ctx := context.Background()
	c, err := client.Connect(ctx, options())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	result, err := c.Exec(ctx, "printf hello; printf oops >&2; (exit 3)", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Stdout, result.Stderr, result.ExitCode)

	// A server with two workers.
	server, err := c.StartProcess(ctx, `python3 -u -c '
import http.server, subprocess, sys
for _ in range(2): subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
s = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print("port", s.server_port)
s.serve_forever()'`, nil)
	if err != nil {
		log.Fatal(err)
	}
	found, err := server.WaitForLog(ctx, regexp.MustCompile(`port (\d+)`), nil)
	if err != nil {
		log.Fatal(err)
	}
	port := 0
	fmt.Sscan(found.Groups[0], &port)
	if err := server.WaitForPort(ctx, port, &client.WaitPortOptions{Timeout: time.Minute}); err != nil {
		log.Fatal(err)
	}
	logs, err := server.StreamLogs(ctx, 0)
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range logs.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(strings.Fields(string(event.Data))[0])
		break
	}
	if err := server.Kill(ctx); err != nil { // it and its workers
		log.Fatal(err)
	}
	fmt.Println(server.Status())

	session, err := c.CreateSession(ctx, &client.SessionOptions{Cwd: "/tmp", Env: map[string]string{"MODE": "x"}})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Destroy(ctx)
	for _, command := range []string{"export API_KEY=secret", `echo "$API_KEY $MODE $PWD"`} {
		result, err := session.Exec(ctx, command, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(result.Stdout)
	}

	cmd, err := session.ExecStream(ctx, "for i in 1 2 3; do echo $i; sleep 0.1; done", nil)
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range cmd.Events() {
		switch {
		case err != nil:
			log.Fatal(err)
		case event.Type == client.EventStdout:
			fmt.Print(string(event.Data))
		case event.Type == client.EventComplete:
			fmt.Println("exit", event.Result.ExitCode)
		}
	}
	// Output:
	// hello oops 3
	// port
	// killed
	// secret x /tmp
	// 1
	// 2
	// 3
	// exit 0
}

// A command that fails is a result. With Check it is an error.
func ExampleSession_Exec() {
	ctx := context.Background()
	c, err := client.Connect(ctx, options())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	result, err := c.Exec(ctx, "tr a-z A-Z; (exit 4)", &client.ExecOptions{Stdin: strings.NewReader("quiet")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Stdout, result.ExitCode)

	_, err = c.Exec(ctx, "(exit 4)", &client.ExecOptions{Check: true})
	if failed, ok := errors.AsType[*client.CommandError](err); ok {
		fmt.Println(failed)
	}
	// Output:
	// QUIET 4
	// (exit 4): exit code 4
}

// When its context ends, Exec ends the command. The session goes on.
func ExampleSession_Exec_cancel() {
	ctx := context.Background()
	c, err := client.Connect(ctx, options())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err = c.Exec(short, "sleep 600", nil)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))

	result, err := c.Exec(ctx, "echo on", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(result.Stdout)
	// Output:
	// true
	// on
}

// A command that was left is read again from the offset at which its reader was, by another program if need be.
func ExampleSession_AttachCommand() {
	ctx := context.Background()
	c, err := client.Connect(ctx, options())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	cmd, err := c.ExecStream(ctx, "echo first; sleep 0.2; echo second", nil)
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range cmd.Events() { // to break out of it leaves the command running
		if err != nil {
			log.Fatal(err)
		}
		if event.Type == client.EventStdout {
			fmt.Print(string(event.Data))
			break
		}
	}
	id, offset := cmd.ID(), cmd.Offset()

	again, err := c.AttachCommand(ctx, id, offset)
	if err != nil {
		log.Fatal(err)
	}
	result, err := again.Result(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(result.Stdout)
	// Output:
	// first
	// second
}

func ExampleCommand_Write() {
	ctx := context.Background()
	c, err := client.Connect(ctx, options())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	cmd, err := c.ExecStream(ctx, `while read -r line; do echo "got $line"; done`, &client.ExecOptions{OpenStdin: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := cmd.Write(ctx, []byte("one\ntwo\n")); err != nil {
		log.Fatal(err)
	}
	if err := cmd.CloseStdin(ctx); err != nil {
		log.Fatal(err)
	}
	result, err := cmd.Result(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(result.Stdout)
	// Output:
	// got one
	// got two
}

func ExampleSession_OpenTerminal() {
	ctx := context.Background()
	c, err := client.Connect(ctx, options())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	terminal, err := c.OpenTerminal(ctx, client.TerminalOptions{Cols: 80, Rows: 24, Command: "read -r name; echo hello $name"})
	if err != nil {
		log.Fatal(err)
	}
	if err := terminal.Write(ctx, []byte("world\n")); err != nil {
		log.Fatal(err)
	}
	var shown strings.Builder
	for event, err := range terminal.Events(ctx) {
		switch {
		case err != nil:
			log.Fatal(err)
		case event.Type == client.EventData:
			shown.Write(event.Data)
		case event.Type == client.EventExit:
			fmt.Println(strings.Contains(shown.String(), "hello world"), *event.Terminal.ExitCode)
		}
	}
	// Output:
	// true 0
}

func ExampleSession_Watch() {
	ctx := context.Background()
	c, err := client.Connect(ctx, options())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	session, err := c.CreateSession(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}

	watcher, err := session.Watch(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := session.Exec(ctx, "true", nil); err != nil {
		log.Fatal(err)
	}
	if err := session.Destroy(ctx); err != nil {
		log.Fatal(err)
	}
	for event, err := range watcher.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if strings.HasPrefix(event.Type, "exec.") {
			fmt.Println(event.Type)
		}
	}
	// Output:
	// exec.started
	// exec.exit
}

func ExampleIsSessionNotFound() {
	ctx := context.Background()
	c, err := client.Connect(ctx, options())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	_, err = c.GetSession(ctx, "no such session")
	fmt.Println(client.IsSessionNotFound(err), client.CodeOf(err))
	// Output:
	// true SESSION_NOT_FOUND
}

// Nothing in the words is special to the shell.
func ExampleQuote() {
	fmt.Println(client.Quote("printf", "%s\n", "it's $HOME", "*"))
	// Output:
	// printf '%s
	// ' 'it'\''s $HOME' '*'
}
