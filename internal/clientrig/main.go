// Command clientrig is the other end of the clients' tests, whatever language they are written in. It starts real gateways, each behind a proxy that
// can cut connections, and does to them what a request says. client/testdata/README.md describes the requests.
//
// It prints its address, serves on loopback, and ends when its standard input does, with everything that it started.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"trl/internal/rig"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "clientrig:", err)
		os.Exit(1)
	}
}

func run() error {
	dir, err := os.MkdirTemp("", "trl-clients-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &control{dir: dir, trl: filepath.Join(dir, "trl"), gateways: map[string]*gateway{}}
	if given := os.Getenv("TRL_TEST_BINARY"); given != "" {
		r.trl = given
	} else if err := rig.Build(r.trl); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	r.origin = "http://" + l.Addr().String()
	fmt.Println(r.origin)

	over := make(chan error, 3)
	go func() { // ends with our standard input; nobody waits for it
		_, err := io.Copy(io.Discard, os.Stdin)
		over <- err
	}()
	go func() { over <- http.Serve(l, r.handler()) }() // ends with the listener
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() { // ends with the process
		<-signals
		over <- nil
	}()
	return errors.Join(<-over, r.stop())
}

// control holds the gateways and carries out the requests.
type control struct {
	dir, trl, origin string // set once

	mu       sync.Mutex
	gateways map[string]*gateway // guarded by mu
}

func (r *control) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /start", r.answer(r.start))
	of := func(act func(*gateway, *http.Request) (any, error)) http.HandlerFunc {
		return r.answer(func(q *http.Request) (any, error) {
			r.mu.Lock()
			g := r.gateways[q.PathValue("id")]
			r.mu.Unlock()
			if g == nil {
				return nil, errors.New("no such gateway")
			}
			return act(g, q)
		})
	}
	mux.HandleFunc("POST /{id}/close/{code}", of(func(g *gateway, q *http.Request) (any, error) {
		code, err := strconv.ParseUint(q.PathValue("code"), 10, 16)
		if err != nil {
			return nil, err
		}
		return nil, g.proxy.end(uint16(code))
	}))
	for name, act := range map[string]func(*gateway) (any, error){
		"cut":     func(g *gateway) (any, error) { g.proxy.cut(true); return nil, nil },
		"mend":    func(g *gateway) (any, error) { g.proxy.mend(); return nil, nil },
		"drop":    func(g *gateway) (any, error) { g.proxy.cut(false); return nil, nil },
		"kill":    func(g *gateway) (any, error) { return nil, g.kill() },
		"upgrade": func(g *gateway) (any, error) { return nil, g.upgrade() },
		"restart": func(g *gateway) (any, error) { return nil, g.restart() },
		"settle":  func(g *gateway) (any, error) { return g.proxy.settle() },
		"stop":    r.end,
	} {
		mux.HandleFunc("POST /{id}/"+name, of(func(g *gateway, _ *http.Request) (any, error) { return act(g) }))
	}
	if page := os.Getenv("TRL_TEST_PAGES"); page != "" { // a browser's tests load their page and scripts from here
		mux.Handle("GET /", http.FileServer(http.Dir(page)))
	}
	return mux
}

// answer turns what an action returns into JSON, and an error into {"error": text}.
func (r *control) answer(act func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		result, err := act(q)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			result = map[string]string{"error": err.Error()}
		}
		_ = json.NewEncoder(w).Encode(cmp.Or(result, any(struct{}{})))
	}
}

func (r *control) start(q *http.Request) (any, error) {
	var o struct {
		Args  []string `json:"args"`
		Relay bool     `json:"relay"` // the gateway owns no session
		Nodes int      `json:"nodes"` // relay, and so many nodes have its sessions
	}
	if err := json.NewDecoder(q.Body).Decode(&o); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(r.dir, "g")
	if err != nil {
		return nil, err
	}
	if o.Nodes == 0 && (o.Relay || os.Getenv("TRL_TEST_RELAY") != "") {
		o.Nodes = 1
	}
	g, err := newGateway(r.trl, dir, append([]string{"--origin", r.origin}, o.Args...), o.Nodes)
	if err != nil {
		return nil, err
	}
	id := filepath.Base(dir)
	r.mu.Lock()
	r.gateways[id] = g
	r.mu.Unlock()
	return map[string]any{"id": id, "url": "http://" + g.proxy.Addr().String(), "direct": "http://" + g.addr, "tokens": g.tokens, "home": g.home}, nil
}

func (r *control) end(g *gateway) (any, error) {
	r.mu.Lock()
	delete(r.gateways, filepath.Base(g.dir))
	r.mu.Unlock()
	return nil, g.stop()
}

// stop ends every gateway that is left.
func (r *control) stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, g := range r.gateways {
		errs = append(errs, g.stop())
	}
	return errors.Join(errs...)
}
