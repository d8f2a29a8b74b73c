package acceptance

import (
	"net/http"
	"testing"

	"github.com/coder/websocket"
)

// guest dials with a link.
func (g *server) guest(t testing.TB, token string) *client {
	t.Helper()
	ws, err := g.open(t, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, ws: ws, change: make(chan struct{}), done: make(chan struct{})}
	go c.read()
	t.Cleanup(c.close)
	return c
}

// TestGuestKeysSurvive: what a guest's request_key stands for is the guest's with the next gateway, too.
func TestGuestKeysSurvive(t *testing.T) {
	g := gateway(t)
	c := g.dial(t)
	c.call("exec.run", object{"command": "n=0"})
	session := c.call("session.list", object{}).objs("sessions")[0].str("session_id")
	link := c.call("share.create", object{"session_id": session, "mode": "control"}).str("token")
	count := object{"command": "n=$((n+1)); echo $n", "request_key": "k"}
	first := g.guest(t, link).call("exec.run", count)
	expect(t, first, 0, "1\n", "")
	sKill(t, g)
	c = g.dial(t)
	expect(t, c.call("exec.run", count), 0, "2\n", "")
	if again := g.guest(t, link).call("exec.run", count); again.str("exec_id") != first.str("exec_id") || again.stdout() != "1\n" {
		t.Errorf("tried again: %v", again)
	}
}
