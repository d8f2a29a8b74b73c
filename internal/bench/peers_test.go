package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/bench/peer"
	"trl/internal/testkit"
)

// All figures are measured of the floors and of a real terminal behind ttyd's wire format. A peer that is not there is named, and so is one that breaks off.
func TestPeersAreMeasured(t *testing.T) {
	testkit.StartsProcesses(t)
	t.Setenv("HOME", t.TempDir()) // without a bashrc that takes its time
	mux := http.NewServeMux()
	mux.HandleFunc("/prompt", echoPrompt)
	mux.HandleFunc("/shell", echoShell)
	mux.HandleFunc("/once", echoOnce)
	server := httptest.NewServer(mux)
	defer server.Close()
	terminals := httptest.NewServer(http.HandlerFunc(likeTTYD))
	defer terminals.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, nil); err == nil {
			c.CloseNow()
		}
	}))
	defer broken.Close()
	host := func(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

	others, err := parsePeers("ttyd=" + host(terminals) + " wsep=" + host(broken) + " execd=127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	var r Peers
	there := r.find(others)
	if len(there) != 2 || !slices.Equal(there[0].roots, []int{os.Getpid()}) {
		t.Fatalf("%+v", there)
	}
	if len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "execd is missing") {
		t.Errorf("%q", r.Missing)
	}
	if pids, err := listeners(1); err == nil {
		t.Errorf("port 1: %v", pids)
	}
	floor := &target{name: "floor", p: must(peer.New("floor", host(server))), roots: []int{os.Getpid()}}
	var printed strings.Builder
	check(r.measure(&printed, append([]*target{floor}, there...), least))

	if err := r.failedOf("floor", "ttyd"); err != nil {
		t.Error(err)
	}
	if r.failedOf("wsep") == nil {
		t.Error("a peer that breaks off has not failed")
	}
	for _, row := range r.Rows {
		terminal := strings.Contains(row.Name, "terminal") || strings.Contains(row.Name, "key") || strings.HasPrefix(row.Name, "– descr") || row.Name == peakRow.Name
		for name, c := range row.Cells {
			if (name == "floor" || name == "ttyd") && (len(c.Values) != 1 || c.Values[0] < 0 && !ofIdle(row)) {
				t.Errorf("%s, %s: %+v", row.Name, name, c)
			}
		}
		if _, ok := row.Cells["ttyd"]; ok && !terminal || !ok && terminal && !strings.HasPrefix(row.Name, "– ") {
			t.Errorf("%s: ttyd has a value: %v", row.Name, ok)
		}
	}
	table := peersTable(r)
	for _, want := range []string{"| | floor | ttyd | wsep |", "execd is missing", "wsep failed at", "| 1 MiB through a terminal | "} {
		if !strings.Contains(printed.String(), want) || !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, printed.String())
		}
	}
}

// ofIdle says whether a row is of idle sessions. Its values may be negative here: this process, which is the server, also frees memory and descriptors.
func ofIdle(row PeerRow) bool { return row.Unit == kibibytes || row.Unit == number1 }

// likeTTYD speaks ttyd's protocol: a bash on a PTY.
func likeTTYD(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"tty"}})
	if err != nil {
		return
	}
	defer c.CloseNow()
	if _, hello, err := c.Read(r.Context()); err != nil || !strings.HasPrefix(string(hello), "{") {
		return
	}
	master, cmd := ptyOf(append(os.Environ(), "TERM=xterm-256color"), "/bin/bash", "--norc", "-i")
	ended := make(chan struct{})
	go func() { // ends with the output
		defer close(ended)
		buf := make([]byte, 64<<10)
		for {
			n, err := master.Read(buf)
			if err != nil || c.Write(r.Context(), websocket.MessageBinary, append([]byte{'0'}, buf[:n]...)) != nil {
				return
			}
		}
	}()
	for {
		_, b, err := c.Read(r.Context())
		if err != nil || len(b) == 0 {
			break
		}
		if _, err := master.Write(b[1:]); b[0] != '0' || err != nil {
			break
		}
	}
	_ = cmd.Process.Kill()
	<-ended
	_ = cmd.Wait()
	master.Close()
}

// A peer that answers nothing ends one repetition, not the run.
func TestHangingPeerIsLeftBehind(t *testing.T) {
	testkit.TakesLong(t)
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err == nil {
			_, _, _ = c.Read(r.Context())
			<-gone
			c.CloseNow()
		}
	}))
	defer server.Close()
	defer close(gone)
	at := &target{name: "ttyd", p: must(peer.New("ttyd", strings.TrimPrefix(server.URL, "http://")))}
	bounded, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := promptOf(bounded, at); err == nil || bounded.Err() == nil {
		t.Errorf("%v", err)
	}
}

func TestPeersFlag(t *testing.T) {
	all, err := parsePeers(" ttyd=127.0.0.1:7681  cf@old=localhost:3000 cf@new=[::1]:3001")
	if want := []namedPeer{{"ttyd", "ttyd", "127.0.0.1:7681"}, {"cf@old", "cf", "localhost:3000"}, {"cf@new", "cf", "[::1]:3001"}}; err != nil || !slices.Equal(all, want) {
		t.Errorf("%v, %v", all, err)
	}
	for _, bad := range []string{"ttyd", "ttyd=127.0.0.1", "ttyd=10.0.0.1:80", "ttyd=example.org:80", "telnetd=127.0.0.1:23", "ttyd=127.0.0.1:1 ttyd=127.0.0.1:2", "trl=127.0.0.1:1"} {
		if _, err := parsePeers(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestPeerCells(t *testing.T) {
	for _, c := range []struct {
		cell PeerCell
		row  PeerRow
		want string
	}{
		{PeerCell{Values: samples{227e3, 221e3, 255e3}}, rowOf("", "ns/op"), "227 µs [221..255]"},
		{PeerCell{Values: samples{0.49e6, 0.43e6, 0.61e6}}, rowOf("", "ns/op"), "490 µs [430..610]"},
		{PeerCell{Values: samples{10.5e6, 9.5e6, 10.9e6}}, rowOf("", "ns/op"), "10.5 ms [9.5..10.9]"},
		{PeerCell{Values: samples{4413}}, rowOf("", "op/s"), "4413 /s"},
		{PeerCell{Values: samples{2.75, 2.5, 3}}, rowOf("", "MB/s"), "2.75 MB/s [2.50..3.00]"},
		{PeerCell{Values: samples{7}}, rowOf("", number1), "7.00"},
	} {
		if got := c.cell.format(c.row.Unit); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	r := Peers{Names: []string{"floor", "trl", "ttyd", "gotty"}}
	row := PeerRow{Name: "echo", Unit: "ns/op", Cells: map[string]PeerCell{"floor": {Values: samples{1e3}}, "trl": {Values: samples{3e3}}, "ttyd": {Values: samples{2e3}}}}
	if got, want := r.line(row), "| echo | 1.00 µs | 3.00 µs | **2.00 µs** | – |\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	row.Cells["ttyd"] = PeerCell{Failed: "why"}
	if got, want := r.line(row), "| echo | 1.00 µs | 3.00 µs | failed | – |\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
