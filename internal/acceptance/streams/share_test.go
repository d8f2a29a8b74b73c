package streams

import (
	"net/http"
	"testing"

	"github.com/coder/websocket"

	"trl/internal/rig"
)

// guest dials with a link.
func guest(t testing.TB, g *rig.Server, token string) *rig.Client {
	t.Helper()
	ws, err := g.Open(t, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatal(err)
	}
	return rig.NewClient(t, ws)
}

// TestRevokedAfterAGatewaysDeath: what a guest has waiting goes with its link, also when another gateway took it over.
func TestRevokedAfterAGatewaysDeath(t *testing.T) {
	g := rig.Gateway(t)
	c := g.Dial(t)
	session := c.Session()
	link := c.Call("share.create", object{"session_id": session, "mode": "control"})
	c.Stream(session, "until [ -e go ]; do sleep 0.01; done")
	waits := guest(t, g, link.Str("token")).Stream(session, "echo >guest").Str("exec_id")
	last := c.Stream(session, "ls").Str("exec_id")
	rig.ReplaceGateway(t, g)
	c = g.Dial(t)
	c.Call("share.revoke", object{"share_id": link.Str("share_id")})
	if n := c.Info(session).Num("queue_length"); n != 1 {
		t.Errorf("%d wait", n)
	}
	c.Call("process.start", object{"session_id": session, "command": "echo >go"})
	if got := c.Call("exec.wait", object{"exec_id": last}); got.Stdout() != "go\n" {
		t.Errorf("%v", got)
	}
	if got := c.Call("exec.wait", object{"exec_id": waits}); !got.Yes("cancelled") {
		t.Errorf("%v", got)
	}
}

// TestGuestKeysSurvive: what a guest's request_key stands for is the guest's with the next gateway, too.
func TestGuestKeysSurvive(t *testing.T) {
	g := rig.Gateway(t)
	c := g.Dial(t)
	c.Call("exec.run", object{"command": "n=0"})
	session := c.Call("session.list", object{}).Objs("sessions")[0].Str("session_id")
	link := c.Call("share.create", object{"session_id": session, "mode": "control"}).Str("token")
	count := object{"command": "n=$((n+1)); echo $n", "request_key": "k"}
	first := guest(t, g, link).Call("exec.run", count)
	rig.Expect(t, first, 0, "1\n", "")
	rig.ReplaceGateway(t, g)
	c = g.Dial(t)
	rig.Expect(t, c.Call("exec.run", count), 0, "2\n", "")
	if again := guest(t, g, link).Call("exec.run", count); again.Str("exec_id") != first.Str("exec_id") || again.Stdout() != "1\n" {
		t.Errorf("tried again: %v", again)
	}
}
