package config

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestWhoStartsWithWhat: which text of the config file each process uses, and which processes a bad file keeps from starting. A bad file
// must not end a keeper that has sessions, and must not keep a gateway from replacing a dead one.
func TestWhoStartsWithWhat(t *testing.T) {
	const (
		first = "max_sessions: 1\nlog_format: json\n"
		last  = "max_sessions: 2\nlog_format: json\n"
		good  = "max_sessions: 3\nlog_format: console\n"
		bad   = "max_sessions: 4\nretention: soon\n"
		old   = "max_session: 5\n" // an older program may have accepted it
	)
	for name, c := range map[string]struct {
		file, first, last string // last: the text that the dead gateway had sent to the keeper
		gateway, goesOn   bool
		sessions          int // 0: it does not start
		json              bool
		refused           bool
		waiting           string
	}{
		"first keeper":                              {file: good, sessions: 3},
		"first keeper, bad file":                    {file: bad},
		"gateway":                                   {file: first, first: first, gateway: true, sessions: 1, json: true},
		"gateway, file changed since":               {file: good, first: first, gateway: true, sessions: 3, json: true, waiting: "log_format"},
		"gateway by an upgrade, bad file":           {file: bad, first: first, gateway: true},
		"gateway after a death, bad file":           {file: bad, first: first, last: last, gateway: true, sessions: 2, json: true, refused: true},
		"gateway after a death, no file":            {first: first, last: last, gateway: true, sessions: 2, json: true, refused: true},
		"gateway after a death, good file":          {file: good, first: first, last: last, gateway: true, sessions: 3, json: true, waiting: "log_format"},
		"gateway after a death, all bad":            {file: bad, first: first, last: bad, gateway: true, sessions: 1, json: true, refused: true},
		"keeper after an upgrade":                   {file: good, first: first, goesOn: true, sessions: 1, json: true},
		"keeper after an upgrade, bad file":         {file: bad, first: first, goesOn: true, sessions: 1, json: true},
		"keeper after an upgrade, other settings":   {file: good, first: old, goesOn: true, sessions: 3, refused: true},
		"keeper after an upgrade, nothing is right": {file: bad, first: old, goesOn: true, sessions: 256, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			withoutVariables(t)
			path := filepath.Join(t.TempDir(), "f.yaml")
			if c.file != "" {
				if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			set := func(name, text string) {
				if text != "" {
					t.Setenv(name, base64.StdEncoding.EncodeToString([]byte(text)))
				}
			}
			set(firstVar, c.first)
			set("TRL_KEEPER_RECALL", c.last)
			if c.gateway {
				t.Setenv("TRL_KEEPER_FD", "3")
			}
			s := &Settings{}
			f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			s.Define(f)
			if err := f.Parse([]string{"--config", path}); err != nil {
				t.Fatal(err)
			}
			s, err := s.Resolve(f, c.goesOn)
			if c.sessions == 0 {
				if err == nil {
					t.Errorf("it starts, with %d", s.Pool.MaxSessions)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.Pool.MaxSessions != c.sessions || (s.LogFormat == "json") != c.json || (s.FileError != nil) != c.refused || strings.Join(s.NeedRestart, " ") != c.waiting {
				t.Errorf("%d sessions, %s, refused: %v, waiting: %v", s.Pool.MaxSessions, s.LogFormat, s.FileError, s.NeedRestart)
			}
			for _, name := range []string{firstVar, "TRL_KEEPER_RECALL"} {
				if _, still := os.LookupEnv(name); still {
					t.Errorf("%s is still there", name)
				}
			}
		})
	}
}
