package web

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
)

// TestGuestsLeavePlaces: connections of guests have bounds by link, by principal and in total, and leave the last places to others.
func TestGuestsLeavePlaces(t *testing.T) {
	for name, x := range map[string]struct {
		of, links int // the bound on a principal's; bob's links
		guests    int // how many get in
		refused   int // what the next ones are told
	}{
		"one link": {0, 1, 2, 429}, "many links": {0, 5, 8, 429}, "of a principal": {3, 5, 3, 429},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, withTokens, func(c *Config) { c.MaxConns, c.MaxConnsOfPrincipal, c.MaxGuests = 12, x.of, 2 })
			owner := g.Dial(gateway.UserToken)
			session := owner.Session()
			var in []*rig.Client
			for range x.links {
				token := owner.Call("share.create", object{"session_id": session}).Str("token")
				for range 3 {
					ws, resp, err := g.DialWith(&websocket.DialOptions{HTTPHeader: bearerHeader(token)})
					if err == nil {
						in = append(in, rig.NewClient(t, ws))
					} else if got := resp.StatusCode; len(in) == x.guests && got != x.refused || len(in) < x.guests && got != 429 || resp.Header.Get("Retry-After") == "" {
						t.Errorf("guest %d: %v %v", len(in)+1, resp, err)
					}
				}
			}
			if len(in) != x.guests {
				t.Errorf("%d guests", len(in))
			}
			other := g.Dial(gateway.AdminToken)
			g.Dial(gateway.UserToken).Call("system.ping", nil)
			g.Share(other, object{"session_id": other.Session()}) // another principal's guests have their own places
			in[0].Close()
			testkit.Eventually(t, "a place", func() bool {
				return g.status(bearerHeader(owner.Call("share.create", object{"session_id": session}).Str("token"))) == 101
			})
		})
	}
}

// TestConnectionsAreBounded: connections have a bound in total and by principal. A client beyond it gets an HTTP error instead of the upgrade. A place
// is free as soon as a connection ends.
func TestConnectionsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	g := start(t, withTokens, func(c *Config) { c.MaxConns, c.MaxConnsOfPrincipal, c.Unix = 3, 2, path })
	refused := func(token string, want int) {
		t.Helper()
		ws, resp, err := g.DialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
		if err == nil {
			ws.CloseNow()
			t.Fatal("the server accepted a connection beyond the bound")
		}
		if resp == nil || resp.StatusCode != want || resp.Header.Get("Retry-After") == "" {
			t.Fatalf("%v: %v", resp, err)
		}
	}
	first, second := g.Dial(gateway.AdminToken), g.Dial(gateway.AdminToken)
	refused(gateway.AdminToken, 429)
	refused(gateway.ViewToken, 429) // the same principal by another token
	third := g.Dial(gateway.UserToken)
	refused(gateway.UserToken, 503)
	local, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	local.SetDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(local).ReadBytes('\n')
	var f rig.Frame
	if json.Unmarshal(line, &f); f.Code() != "LIMIT_EXCEEDED" || f.Error.Details.Num("limit") != 3 {
		t.Fatalf("%q %v", line, err)
	}
	// A request that is no upgrade, and one that comes to nothing, take no place.
	for range 5 {
		if resp, _ := get(t, g.URL()+"/metrics", "Authorization", "Bearer "+gateway.UserToken); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
	}
	third.Close()
	testkit.Eventually(t, "a place", func() bool { return g.Metric("trl_connections") == 2 })
	for range 5 {
		if resp, _ := get(t, g.URL()+"/v1/ws", "Authorization", "Bearer "+gateway.UserToken); resp.StatusCode != 426 {
			t.Fatal(resp.Status)
		}
	}
	testkit.Eventually(t, "a connection", func() bool {
		ws, _, err := g.DialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + gateway.UserToken}}})
		if err == nil {
			ws.CloseNow()
		}
		return err == nil
	})
	if got := g.Metric("trl_connections_refused_total"); got < 4 {
		t.Errorf("the metric counts %v refused connections", got)
	}
	first.Call("system.ping", nil)
	first.Close()
	second.Close()
	testkit.Eventually(t, "all places are free", func() bool { return g.Metric("trl_connections") == 0 })
	for _, token := range []string{gateway.AdminToken, gateway.AdminToken, gateway.UserToken} {
		testkit.Eventually(t, "a place for each", func() bool {
			ws, _, err := g.DialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
			if err == nil {
				rig.NewClient(t, ws)
			}
			return err == nil
		})
	}
}
