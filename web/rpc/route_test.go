package rpc

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"trl/internal/testkit"
)

// TestRelayedNamesKeepTheirOrder: requests that follow a create, a rename or a destroy at once see its effect, as on one node.
func TestRelayedNamesKeepTheirOrder(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"})
	c := cl.node("gate").Dial()
	for i := range 10 {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		create := c.Begin("session.create", object{"name": a})
		rename := c.Begin("session.rename", object{"session": a, "name": b})
		run := c.Begin("exec.run", object{"session": b, "command": "echo hi"})
		byOld := c.Begin("exec.run", object{"session": a, "command": "true"})
		if f := c.Answer(run); f.Data.Stdout() != "hi\n" {
			t.Fatalf("%+v", f.Error)
		}
		destroy := c.Begin("session.destroy", object{"session": b})
		after := c.Begin("exec.run", object{"session": b, "command": "true"})
		ended := c.Begin("session.info", object{"session": b})
		for _, id := range []int{create, rename, destroy} {
			if f := c.Answer(id); !f.OK {
				t.Fatalf("%+v", f.Error)
			}
		}
		if f := c.Answer(byOld); f.Code() != "SESSION_NOT_FOUND" {
			t.Fatalf("%+v", f)
		}
		if f := c.Answer(after); f.Code() != "SESSION_TERMINATED" {
			t.Fatalf("%+v", f)
		}
		if f := c.Answer(ended); f.Data.Str("state") != "TERMINATED" {
			t.Fatalf("%+v", f)
		}
	}
}

// TestGuestOfAnotherNode: a share link works at every node, with the rights that it gives, until its node ends it.
func TestGuestOfAnotherNode(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"}, twoUsers)
	gate := cl.node("gate")
	bob := gate.Dial("bobs-token")
	s := bob.Session(object{"name": "shared"})
	bob.Run(s, "X=shown")
	view, link := gate.Share(bob, object{"session_id": s})
	control, _ := gate.Share(bob, object{"session_id": s, "mode": "control"})
	if can := view.Call("system.capabilities", nil).Obj("principal"); can.Str("subject") != "bob" || can.Obj("share").Str("share_id") != link.Str("share_id") {
		t.Error(can)
	}
	if code := view.Try("exec.run", object{"command": ":"}).Code(); code != "FORBIDDEN" {
		t.Error(code)
	}
	if code := view.Try("session.create", nil).Code(); code != "FORBIDDEN" {
		t.Error(code)
	}
	if r := control.Call("exec.run", object{"command": "echo $X"}); r.Stdout() != "shown\n" {
		t.Error(r)
	}
	if list := view.Call("session.list", nil).Objs("sessions"); len(list) != 1 || list[0].Str("session_id") != s {
		t.Error(list)
	}
	idle, _ := gate.Share(bob, object{"session_id": s})
	bob.Call("session.destroy", object{"session_id": s})
	bob.Call("share.revoke", object{"share_id": link.Str("share_id")})
	if code := view.CloseStatus(); code != 4403 {
		t.Error(code)
	}
	idle.Close()
	o := &websocket.DialOptions{Subprotocols: []string{"trl.v1"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + link.Str("token")}}}
	if _, resp, err := gate.DialWith(o); err == nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a revoked link opens a connection: %v", err)
	}
}

// TestGuestOfUnreachableNode: while a gateway cannot ask the node of a share link, because it does not know all nodes yet or cannot reach that one, the
// guest is told to try again, and the link is no wrong credential.
func TestGuestOfUnreachableNode(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"}, twoUsers)
	gate, one := cl.node("gate"), cl.node("one")
	bob := gate.Dial("bobs-token")
	guest, link := gate.Share(bob, object{"session_id": bob.Session()})
	guest.Close()
	try := func() (status int, retryAfter string) {
		o := &websocket.DialOptions{Subprotocols: []string{"trl.v1"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + link.Str("token")}}}
		ws, resp, err := gate.DialWith(o)
		if err == nil {
			ws.CloseNow()
		}
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	setFresh := func(fresh bool) {
		cl.mu.Lock()
		defer cl.mu.Unlock()
		one.hidden, cl.fresh = fresh, fresh
	}
	const tries = 50 // far more wrong credentials than an address may send
	setFresh(true)
	for range tries {
		if status, wait := try(); status != http.StatusServiceUnavailable || wait == "" {
			t.Fatalf("the node may live: %d, Retry-After %q", status, wait)
		}
	}
	setFresh(false)
	one.proxy.setAway(true)
	one.proxy.cut()
	for range tries {
		if status, wait := try(); status != http.StatusServiceUnavailable || wait == "" {
			t.Fatalf("the node cannot be reached: %d, Retry-After %q", status, wait)
		}
	}
	one.proxy.setAway(false)
	testkit.Eventually(t, "the guest is let in", func() bool {
		status, _ := try()
		return status == http.StatusSwitchingProtocols
	})
	cl.mu.Lock()
	one.hidden = true
	cl.mu.Unlock()
	if status, _ := try(); status != http.StatusUnauthorized {
		t.Errorf("the node is gone: %d", status)
	}
}

// TestLookupsAreBounded: a request whose session is said to be on one node and on another one by turns, and is on none, gets an answer.
func TestLookupsAreBounded(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one", "two"})
	var sessions []string // one of each node; none has the name
	for _, name := range []string{"one", "two"} {
		cl.placeOn(name)
		sessions = append(sessions, cl.node("gate").Dial().Session())
	}
	var lookups atomic.Int64
	cl.mu.Lock()
	cl.found = func() string { return sessions[lookups.Add(1)%2] }
	cl.mu.Unlock()
	f := cl.node("gate").Dial().Try("exec.run", object{"session": "nowhere", "command": ":"})
	if f.OK || lookups.Load() != 1+maxLookups {
		t.Errorf("%d lookups, %v", lookups.Load(), f.Error)
	}
	lookups.Store(0)
	status, text := post(t, cl.node("gate"), `{"method":"exec.run","params":{"session":"nowhere","command":":"}}`, "")
	if status == http.StatusOK || lookups.Load() != 1+maxLookups {
		t.Errorf("over HTTP: %d lookups, %s", lookups.Load(), text)
	}
}
