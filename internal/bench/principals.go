package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"trl/internal/bench/figure"
)

// What many principals cost: a gateway whose token file has *principals tokens, beside one with a single token. Everything goes over POST /v1/rpc, so
// nothing is kept for a connection.

// tokenGateway is a gateway with some tokens, each of a principal of its own.
type tokenGateway struct {
	*child
	rpc, tokens string // the URL, and the token file
	n           int
}

// principalsCost is `make bench-principals`.
func principalsCost() error {
	most := *manyPrincipals
	if *quick {
		*rounds, most = 50, 500
	}
	openFiles()
	few, many := startWithTokens(1), startWithTokens(most)
	defer few.stop()
	defer many.stop()
	c := gateway()
	ws := dial(c.addr + "/v1/ws")
	report = figure.Report{Machine: machine(tier(ws))}
	ws.CloseNow()
	c.stop()
	fmt.Println(report.Machine)
	figure.Header(os.Stdout)

	rss := func(g *tokenGateway) samples { return samples{status(gatewayOf(g.cmd.Process.Pid)).rss} }
	emit(figure.New(fmt.Sprintf("%d tokens / 1: gateway's RSS", most), "RSSOfTokens", figure.Bytes, rss(few), rss(many)))
	var f, o samples
	for i := range 5 {
		f.Add(few.addToken(i))
		o.Add(many.addToken(i))
	}
	row("a token is added, until it is good", f, o)

	next := 0
	other := func() int { next = (next + 7919) % many.n; return next } // each request of another principal
	work := func(g *tokenGateway, of func() int, method string, params map[string]any) func() {
		return func() { g.call(of(), method, params) }
	}
	one := func() int { return 0 }
	f, o = turns(*rounds, work(few, one, "system.ping", nil), work(many, other, "system.ping", nil))
	row("POST system.ping, each of another principal / one", f, o)

	made, stopped := many.sessions()
	fmt.Printf("%d principals have a session: %s\n", made, stopped)
	few.call(0, "session.create", map[string]any{"shell": "/bin/sh", "name": "mine"})
	time.Sleep(2 * time.Second) // what follows a creation
	emit(figure.New(fmt.Sprintf("%d principals with a session / 1: gateway's RSS", made), "RSSOfSessions", figure.Bytes, rss(few), rss(many)))
	owner := func() int { return other() % min(made, 100) } // few enough that their sessions do not rest meanwhile
	run := map[string]any{"session": "mine", "command": ":"}
	work(few, one, "exec.run", run)()
	f, o = turns(min(*rounds, made), work(few, one, "exec.run", run), work(many, owner, "exec.run", run))
	row("POST exec.run, of 100 principals in turn / one", f, o)
	f, o = turns(*rounds, work(few, one, "session.list", nil), work(many, owner, "session.list", nil))
	row("POST session.list, of 100 principals in turn / one", f, o)
	last := owner()
	f, o = turns(*rounds, work(few, one, "exec.run", run), work(many, func() int { return last }, "exec.run", run))
	row("POST exec.run of one principal among many / alone", f, o)
	return save("principals", report)
}

// startWithTokens starts a gateway with n tokens.
func startWithTokens(n int) *tokenGateway {
	dir := must(os.MkdirTemp("", "trl-bench-tokens-"))
	g := &tokenGateway{n: n, tokens: filepath.Join(dir, "tokens")}
	var file bytes.Buffer
	for i := range n {
		fmt.Fprintf(&file, "sha256:%x principal-%d user\n", sha256.Sum256([]byte(token(i))), i)
	}
	check(os.WriteFile(g.tokens, file.Bytes(), 0o600))
	g.child = startIn(dir, *trl, "serve", "--listen", "127.0.0.1:0", "--state-dir", dir, "--token-file", g.tokens, "--max-sessions", "20000", "--warm", "0",
		"--idle-timeout", "0", "--log-level", "error")
	g.rpc = strings.Replace(g.addr, "ws", "http", 1) + "/v1/rpc"
	return g
}

// token is a principal's token.
func token(i int) string { return fmt.Sprintf("token-%d-of-a-benchmark-on-loopback", i) }

// try makes a request of a principal. It returns the answer and whether it is a result.
func (g *tokenGateway) try(principal, method string, params any) (answer []byte, ok bool) {
	r := must(http.NewRequest("POST", g.rpc, bytes.NewReader(request(1, method, params))))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+principal)
	resp := must(http.DefaultClient.Do(r))
	defer resp.Body.Close()
	answer = must(io.ReadAll(resp.Body))
	return answer, bytes.Contains(answer, []byte(`"ok":true`))
}

func (g *tokenGateway) call(principal int, method string, params any) {
	if answer, ok := g.try(token(principal), method, params); !ok {
		panic(string(answer))
	}
}

// addToken adds a token to the file, and returns how long the gateway takes until it knows the token.
func (g *tokenGateway) addToken(i int) time.Duration {
	text := must(os.ReadFile(g.tokens))
	fresh := fmt.Sprint("fresh-", i, "-of-a-benchmark-on-loopback")
	text = fmt.Appendf(text, "sha256:%x fresh-%d user\n", sha256.Sum256([]byte(fresh)), i)
	check(os.WriteFile(g.tokens+".new", text, 0o600))
	began := time.Now()
	check(os.Rename(g.tokens+".new", g.tokens))
	for {
		if _, ok := g.try(fresh, "system.ping", map[string]any{}); ok {
			return time.Since(began)
		}
		if time.Since(began) > time.Minute {
			panic("a new token is not known")
		}
		time.Sleep(time.Millisecond)
	}
}

// sessions makes a session for each principal, as far as the machine's limits allow.
func (g *tokenGateway) sessions() (made int, stopped string) {
	for made = range g.n {
		answer, ok := g.try(token(made), "session.create", map[string]any{"shell": "/bin/sh", "name": "mine"})
		if !ok {
			return made, string(answer)
		}
	}
	return g.n, "each has one"
}
