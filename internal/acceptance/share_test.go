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

// TestRevokedAfterAGatewaysDeath: what a guest has waiting goes with its link, also when another gateway took it over.
func TestRevokedAfterAGatewaysDeath(t *testing.T) {
	g := gateway(t)
	c := g.dial(t)
	session := c.session()
	link := c.call("share.create", object{"session_id": session, "mode": "control"})
	c.stream(session, "until [ -e go ]; do sleep 0.01; done")
	waits := g.guest(t, link.str("token")).stream(session, "echo >guest").str("exec_id")
	last := c.stream(session, "ls").str("exec_id")
	sKill(t, g)
	c = g.dial(t)
	c.call("share.revoke", object{"share_id": link.str("share_id")})
	if n := c.info(session).num("queue_length"); n != 1 {
		t.Errorf("%d wait", n)
	}
	c.call("process.start", object{"session_id": session, "command": "echo >go"})
	if got := c.call("exec.wait", object{"exec_id": last}); got.stdout() != "go\n" {
		t.Errorf("%v", got)
	}
	if got := c.call("exec.wait", object{"exec_id": waits}); !got.yes("cancelled") {
		t.Errorf("%v", got)
	}
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
