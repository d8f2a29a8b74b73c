package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trl/client"
	"trl/internal/cmdline"
	"trl/internal/mcp"
	"trl/protocol"
)

// mcpFlags are the flags of trl mcp; trl mcp config writes them into the configuration.
type mcpFlags struct {
	*target
	session        cmdline.NonEmpty
	readOnly, keep bool
}

func (f *mcpFlags) define(cmd *cobra.Command) {
	f.target = connectionWithoutJSON(cmd)
	cmd.Flags().Var(&f.session, "session", "`name` of the session to use, made if it does not exist, and left at the end (default: one of its own)")
	cmd.Flags().BoolVar(&f.readOnly, "read-only", false, "offer only the tools that change nothing: wait and list")
	cmd.Flags().BoolVar(&f.keep, "keep", false, "leave the sessions at the end")
}

// NewMCP returns the command that serves an agent's host.
func NewMCP() *cobra.Command {
	var f mcpFlags
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve an agent's host: sessions as tools of the Model Context Protocol",
		Long: `Serve an agent's host on stdin and stdout, by the Model Context Protocol: the tools run, wait, send, stop, list and session.

The host starts this program; trl mcp config prints how to tell it. The gateway must run, and may restart meanwhile.
Commands run in a session of this program's own. It ends with the program: at the end of stdin, at TERM, INT or HUP, or when the host is gone.
A gateway has the same tools over HTTP, at /mcp.`,
		Example: `  trl mcp config claude
  trl mcp --session work --read-only`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := mcp.Config{
				Dial: (&mcpDialer{target: f.target}).dial, Sessions: &mcp.OwnSessions{Name: string(f.session), Dir: f.ownDir()},
				Seen: mcp.NewSeen(), ReadOnly: f.readOnly, CancelStops: true,
			}
			return mcp.ServeStdio(cmd.Context(), c, f.keep)
		},
	}
	f.define(cmd)
	cmd.AddCommand(newMCPConfig())
	return cmd
}

// ownDir is our directory, if the gateway is on this machine.
func (f *mcpFlags) ownDir() string {
	o, err := f.resolve()
	if err != nil || o.Unix == "" && !isLoopback(o.URL) {
		return ""
	}
	dir, _ := os.Getwd()
	return dir
}

// mcpPatience is how long a call waits for a gateway that is being restarted. Hosts give up after a minute.
const mcpPatience = 20 * time.Second

// mcpDialer connects for each call of a tool.
type mcpDialer struct {
	*target
	found atomic.Bool // an earlier call has found the gateway
}

// dial connects. If an earlier call found the gateway, dial waits for one that is being restarted. The text of its errors has their hints.
func (d *mcpDialer) dial(ctx context.Context) (*client.Client, error) {
	for until := time.Now().Add(mcpPatience); ; {
		c, err := d.target.dial(ctx, nil)
		if err == nil {
			d.found.Store(true)
			return c, nil
		}
		if refused := errors.As(err, new(*protocol.Error)); refused || !d.found.Load() || time.Now().After(until) || ctx.Err() != nil {
			if hinted := (*cmdline.HintedError)(nil); errors.As(err, &hinted) && hinted.Hint != "" {
				err = fmt.Errorf("%w: %s", err, hinted.Hint)
			}
			return nil, err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func newMCPConfig() *cobra.Command {
	var f mcpFlags
	var overHTTP bool
	cmd := &cobra.Command{
		Use:   "config HOST",
		Short: "Print how to tell an agent's host about trl: claude, cursor, codex or vscode",
		Long: `Print the configuration by which an agent's host finds trl, with the flags that are given here. What to do with it goes to stderr.
With --http it names the gateway's /mcp, and the host sends the token of its environment variable TRL_TOKEN.`,
		Example: `  trl mcp config claude >.mcp.json
  trl mcp config codex --session work >>~/.codex/config.toml`,
		Args:              cmdline.OneArg,
		ValidArgsFunction: cobra.FixedCompletions([]string{"claude", "cursor", "codex", "vscode"}, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.print(cmd, args[0], overHTTP)
		},
	}
	f.define(cmd)
	cmd.Flags().BoolVar(&overHTTP, "http", false, "name the gateway's address instead of this program")
	return cmd
}

// print prints the configuration of a host.
func (f *mcpFlags) print(cmd *cobra.Command, host string, overHTTP bool) error {
	where := map[string]string{
		"claude": "put this into .mcp.json of a project, or run: claude mcp add-json trl '…' with what is behind \"trl\":",
		"cursor": "put this into .cursor/mcp.json of a project, or ~/.cursor/mcp.json",
		"codex":  "put this into ~/.codex/config.toml",
		"vscode": "put this into .vscode/mcp.json of a project",
	}[host]
	if where == "" {
		return cmdline.NewUsageError(cmdline.WithHint(fmt.Errorf("no configuration for %q", host), "want claude, cursor, codex or vscode"))
	}
	server, err := f.server(host, overHTTP)
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), where)
	out := cmd.OutOrStdout()
	if host == "codex" {
		return printTOML(out, server)
	}
	key := "mcpServers"
	if host == "vscode" {
		key = "servers"
	}
	b, err := json.Marshal(map[string]any{key: map[string]any{"trl": server}}, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}

// server describes us, or the gateway's /mcp, in the words of a host.
func (f *mcpFlags) server(host string, overHTTP bool) (map[string]any, error) {
	if overHTTP {
		o, err := f.resolve()
		if err != nil {
			return nil, err
		}
		if o.URL == "" {
			return nil, cmdline.NewUsageError(errors.New("--http needs the gateway's address: pass --url"))
		}
		address := strings.TrimRight(o.URL, "/") + "/mcp"
		if host == "codex" {
			return map[string]any{"url": address, "bearer_token_env_var": "TRL_TOKEN"}, nil
		}
		token := "${env:TRL_TOKEN}"
		if host == "claude" {
			token = "${TRL_TOKEN}"
		}
		return map[string]any{"type": "http", "url": address, "headers": map[string]string{"Authorization": "Bearer " + token}}, nil
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"mcp"}
	f.flags.VisitAll(func(g *pflag.Flag) {
		value := g.Value.String()
		if value == "" || !g.Changed && !f.fromEnvironment(g.Name) {
			return
		}
		switch g.Name {
		case "http":
			return
		case "state-dir", "token-file", "unix": // the host starts us in a directory of its own
			if path, err := filepath.Abs(value); err == nil {
				value = path
			}
		}
		args = append(args, "--"+g.Name+"="+value)
	})
	server := map[string]any{"command": program, "args": args}
	if host == "claude" || host == "vscode" {
		server["type"] = "stdio"
	}
	return server, nil
}

// fromEnvironment tells whether the value of this flag came from our environment and says which gateway to use: the host may start us without it.
func (f *mcpFlags) fromEnvironment(flag string) bool {
	switch flag {
	case "url": // TRL_URL does not count beside these flags
		return !f.flags.Changed("state-dir") && !f.flags.Changed("unix")
	case "state-dir", "token-file":
		return true
	}
	return false
}

// printTOML prints a table of strings and lists of them.
func printTOML(w io.Writer, server map[string]any) error {
	lines := []string{"[mcp_servers.trl]"}
	for _, key := range []string{"command", "args", "url", "bearer_token_env_var"} {
		if v, ok := server[key]; ok {
			b, err := json.Marshal(v) // a JSON string is a TOML string
			if err != nil {
				return err
			}
			lines = append(lines, key+" = "+string(b))
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
