package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"trl/client"
	"trl/internal/testkit"
)

// TestInputSurvivesKilledGateways: gateways are killed and the connection is cut while a large input is on its way, and every byte arrives once.
func TestInputSurvivesKilledGateways(t *testing.T) {
	testkit.StartsProcesses(t)
	rig := startRig(t)
	g := rig.start(t, nil)
	defer g.do("stop")
	ctx, cancel := context.WithTimeout(t.Context(), 3*testkit.Patience)
	defer cancel()
	c, err := client.Connect(ctx, client.Options{URL: g.URL, Token: g.Tokens["user"]})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.CreateSession(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(strings.Repeat("0123456789abcdef", 10<<20/16))
	const sum = "3f5862181da2da49ce240dea1c5cfdafda27f0864f7576b59b0b437c3e463bfd  -\n"
	const faults = 8
	over := make(chan struct{})
	go func() { // ends after the last fault; waited for below
		defer close(over)
		for n := range faults {
			time.Sleep(500 * time.Millisecond) // for some input to arrive
			if _, err := g.do([]string{"kill", "drop"}[n%2]); err != nil {
				t.Error(err)
			}
		}
	}()
	ways := map[string]func() (stdout string, err error){
		"a reader": func() (string, error) {
			r, err := s.Exec(ctx, "sha256sum", &client.ExecOptions{Stdin: bytes.NewReader(text)})
			if err != nil {
				return "", err
			}
			return r.Stdout, nil
		},
		"a command": func() (string, error) {
			e, err := s.ExecStream(ctx, "sha256sum", &client.ExecOptions{OpenStdin: true})
			if err != nil {
				return "", err
			}
			if err := errors.Join(e.Write(ctx, text), e.CloseStdin(ctx)); err != nil {
				return "", err
			}
			r, err := e.Result(ctx)
			if err != nil {
				return "", err
			}
			return r.Stdout, nil
		},
		"a process": func() (string, error) {
			p, err := s.StartProcess(ctx, "sha256sum", &client.ProcessOptions{OpenStdin: true})
			if err != nil {
				return "", err
			}
			if err := errors.Join(p.Write(ctx, text), p.CloseStdin(ctx)); err != nil {
				return "", err
			}
			if _, err := p.WaitForExit(ctx, 0); err != nil {
				return "", err
			}
			logs, err := p.GetLogs(ctx)
			if err != nil {
				return "", err
			}
			return logs.Stdout, nil
		},
		"a terminal": func() (string, error) {
			term, err := s.OpenTerminal(ctx, client.TerminalOptions{Cols: 80, Rows: 24, Command: fmt.Sprintf("stty raw -echo; echo ready; head -c %d | sha256sum", len(text))})
			if err != nil {
				return "", err
			}
			defer term.Detach()
			var shown strings.Builder
			await := func(text string) error {
				for !strings.Contains(shown.String(), text) {
					e, err := term.Next(ctx)
					if err != nil {
						return err
					}
					shown.Write(e.Data)
				}
				return nil
			}
			if err := await("ready"); err != nil { // in line mode no long line is taken
				return "", err
			}
			if err := term.Write(ctx, text); err != nil {
				return "", err
			}
			return sum, await(sum[:64])
		},
	}
	for name, way := range ways {
		if got, err := way(); err != nil || got != sum {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	<-over
}
