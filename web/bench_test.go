package web

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// roundTrips measures one message and its answer on one connection.
func roundTrips(b *testing.B, url, message string) {
	b.Helper()
	ctx := context.Background()
	ws, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer ws.CloseNow()
	b.ReportAllocs()
	for b.Loop() {
		if err := ws.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
			b.Fatal(err)
		}
		if _, _, err := ws.Read(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEcho is the floor: an echo with coder/websocket on both sides.
func BenchmarkEcho(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		for {
			kind, p, err := ws.Read(context.Background())
			if err != nil || ws.Write(context.Background(), kind, p) != nil {
				return
			}
		}
	}))
	defer s.Close()
	roundTrips(b, "ws"+strings.TrimPrefix(s.URL, "http"), `{"id":1,"method":"exec.run","params":{"command":":"}}`)
}

func BenchmarkPing(b *testing.B) {
	g := start(b)
	roundTrips(b, "ws://"+g.Addr()+"/v1/ws", `{"id":1,"method":"system.ping"}`)
}

func BenchmarkRun(b *testing.B) {
	g := start(b)
	roundTrips(b, "ws://"+g.Addr()+"/v1/ws", `{"id":1,"method":"exec.run","params":{"command":":"}}`)
}
