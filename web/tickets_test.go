package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/limits"
)

func TestTickets(t *testing.T) { // K6
	g := start(t, withTokens)
	ask := func(headers ...string) string {
		t.Helper()
		r, _ := http.NewRequest("POST", g.URL()+"/v1/tickets", nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var data struct {
			Ticket  string  `json:"ticket"`
			Expires float64 `json:"expires_in_s"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&data); resp.StatusCode == 200 && (err != nil || data.Expires != 30 || len(data.Ticket) < 40) {
			t.Fatalf("%v, %v", data, err)
		}
		return data.Ticket
	}
	use := func(ticket string, h http.Header) int { return g.status(h, "trl.v1", "trl.ticket."+ticket) }

	if ask() != "" || ask("Authorization", "Bearer wrong") != "" {
		t.Error("the server gave a ticket without a valid credential")
	}
	one := ask("Authorization", "Bearer "+gateway.UserToken)
	ws, resp, err := g.DialWith(&websocket.DialOptions{Subprotocols: []string{"trl.ticket." + one, "trl.v1"}})
	if err != nil || ws.Subprotocol() != "trl.v1" || strings.Contains(fmt.Sprint(resp.Header), one) {
		t.Fatalf("%v %v", err, resp.Header)
	}
	if who := rig.NewClient(t, ws).Call("system.capabilities", nil)["principal"].(map[string]any); who["subject"] != "bob" {
		t.Errorf("%v", who)
	}
	if got := use(one, nil); got != 401 {
		t.Errorf("a ticket that was used twice was answered with %d", got)
	}
	if got := use(one, bearerHeader(gateway.UserToken)); got != 401 { // the first credential counts
		t.Errorf("a ticket that was used twice, with a token, was answered with %d", got)
	}
	if got := use(ask("Authorization", "Bearer "+gateway.UserToken), bearerHeader(gateway.AdminToken)); got != 401 {
		t.Errorf("a ticket and a token of another principal were answered with %d", got)
	}
	if got := use(ask("Authorization", "Bearer "+gateway.UserToken), bearerHeader(gateway.UserToken)); got != 101 {
		t.Errorf("a ticket and a token of the same principal were answered with %d", got)
	}
	ours := ask("Authorization", "Bearer "+gateway.UserToken, "Origin", g.URL())
	if got := use(ours, nil); got != 401 {
		t.Errorf("a page's ticket without the page's origin was answered with %d", got)
	}
	if got := use(ours, http.Header{"Origin": {g.URL()}}); got != 401 {
		t.Errorf("a page's ticket that was used before was answered with %d", got)
	}
	if got := use(ask("Authorization", "Bearer "+gateway.UserToken, "Origin", g.URL()), http.Header{"Origin": {g.URL()}}); got != 101 {
		t.Errorf("a page's ticket was answered with %d", got)
	}
	// A ticket makes no other.
	if ask("Sec-WebSocket-Protocol", "trl.ticket."+ask("Authorization", "Bearer "+gateway.UserToken)) != "" {
		t.Error("the server gave a ticket for a ticket")
	}
	for range 3 * limits.Constant(t, "web/auth.maxOwnTickets") {
		ask("Authorization", "Bearer "+gateway.UserToken)
	}
	if ask("Authorization", "Bearer "+gateway.UserToken) != "" {
		t.Error("a subject got more tickets than its bound")
	}
	if ask("Authorization", "Bearer "+gateway.AdminToken) == "" {
		t.Error("another subject got no ticket")
	}
}
