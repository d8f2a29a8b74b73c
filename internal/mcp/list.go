package mcp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"trl/protocol"
)

const (
	// listedExecs is how many of a session's commands list shows.
	listedExecs = 12
	// listedSessions is how many sessions list shows.
	listedSessions = 50
	// listedText is how many characters of a command list shows.
	listedText = 100
)

// list shows the sessions, or what one of them has.
func (k *call) list(ctx context.Context, a listArgs) (string, error) {
	if a.Session != "" {
		return k.listSession(ctx, a.Session)
	}
	var all protocol.Sessions
	if err := k.c.Call(ctx, "session.list", protocol.SessionList{}, &all); err != nil {
		return "", err
	}
	if len(all.Sessions) == 0 {
		return "no sessions: run makes one", nil
	}
	mine := ""
	if k.Sessions != nil {
		mine = k.Sessions.current()
	}
	slices.SortStableFunc(all.Sessions, func(a, b protocol.SessionInfo) int { return b.LastActiveAt.Compare(a.LastActiveAt) })
	var b strings.Builder
	if n := len(all.Sessions); n == 1 {
		b.WriteString("1 session:\n")
	} else {
		fmt.Fprintf(&b, "%d sessions, the one used last first:\n", n)
	}
	for i, s := range all.Sessions {
		if i == listedSessions {
			fmt.Fprintf(&b, "… and %d more\n", len(all.Sessions)-i)
			break
		}
		b.WriteString(sessionLine(&s))
		if s.SessionID == mine || k.Sessions == nil && s.Name == "default" && s.TerminatedAt == nil {
			b.WriteString(" (the one of calls without session)")
		}
		b.WriteByte('\n')
	}
	return strings.TrimRight(b.String(), "\n"), nil
}

func sessionLine(s *protocol.SessionInfo) string {
	line := fmt.Sprintf("%s [%s] %s, in %s", cmp.Or(s.Name, "(no name)"), s.SessionID, strings.ToLower(s.State), s.WorkingDir)
	if s.Reason != "" {
		line += ", ended: " + string(s.Reason)
	}
	if x := s.CurrentExec; x != nil {
		line += fmt.Sprintf("; runs %s [%s]", short(x.Command), x.ID)
	}
	for _, n := range []struct {
		count     int
		one, more string
	}{{s.QueueLength, "waiting", "waiting"}, {s.Processes, "process", "processes"}, {s.Terminals, "terminal", "terminals"}, {len(s.Unmanaged), "background job", "background jobs"}} {
		switch {
		case n.count == 1:
			line += "; 1 " + n.one
		case n.count > 1:
			line += fmt.Sprintf("; %d %s", n.count, n.more)
		}
	}
	return line
}

// listSession shows one session: its commands, processes and terminals.
func (k *call) listSession(ctx context.Context, arg string) (string, error) {
	ref, err := k.ref(ctx, arg)
	if err != nil {
		return "", err
	}
	var of struct {
		info      protocol.SessionInfo
		execs     protocol.Execs
		processes protocol.Processes
		terminals protocol.Terminals
	}
	for method, into := range map[string]any{"session.info": &of.info, "exec.list": &of.execs, "process.list": &of.processes, "term.list": &of.terminals} {
		if err := k.c.Call(ctx, method, ref, into); err != nil {
			return "", err
		}
	}
	lines := []string{sessionLine(&of.info)}
	section := func(title string, entries []string) {
		if len(entries) > 0 {
			lines = append(append(lines, title), entries...)
		}
	}
	execs := of.execs.Execs
	var texts []string
	for _, x := range execs[max(0, len(execs)-listedExecs):] {
		state := x.State
		if x.Exit != nil {
			state = outcome(x.Exit.ExitCode, x.Exit.Signal)
		} else if x.StartedAt != nil {
			state += " for " + seconds(time.Since(*x.StartedAt))
		}
		texts = append(texts, fmt.Sprintf("  %s [%s] %s", state, x.ExecID, short(x.Command)))
	}
	section("commands, the latest last:", texts)
	texts = nil
	for _, p := range of.processes.Processes {
		line := fmt.Sprintf("  %s [%s] %s", processState(&p), p.ProcessID, short(p.Command))
		if len(p.Ports) > 0 {
			line += fmt.Sprintf(", listens on %s", strings.Trim(fmt.Sprint(p.Ports), "[]"))
		}
		texts = append(texts, line)
	}
	section("background processes:", texts)
	texts = nil
	for _, t := range of.terminals.Terminals {
		state := t.State
		if state == "exited" {
			state = outcome(t.ExitCode, t.Signal)
		}
		texts = append(texts, fmt.Sprintf("  %s [%s] %s", state, t.TermID, cmp.Or(short(t.Command), "shell")))
	}
	section("terminals:", texts)
	texts = nil
	for _, p := range of.processes.BackgroundCommands {
		texts = append(texts, fmt.Sprintf("  pid %d %s", p.Pid, short(p.Command)))
	}
	section("left running by commands:", texts)
	return strings.Join(lines, "\n"), nil
}

func processState(p *protocol.ProcessInfo) string {
	if p.State == "exited" {
		return outcome(p.ExitCode, p.Signal)
	}
	return fmt.Sprintf("pid %d, running for %s", p.Pid, seconds(time.Since(p.StartedAt)))
}

// short is a command for a list: its first line, and not too much of it.
func short(command string) string {
	line, _, more := strings.Cut(strings.TrimSpace(protocol.Clean(command)), "\n")
	if runes := []rune(line); len(runes) > listedText {
		line, more = string(runes[:listedText]), true
	}
	if more {
		line += " …"
	}
	return line
}
