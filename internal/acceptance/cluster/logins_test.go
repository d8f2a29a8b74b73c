package cluster

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// A login of the page is good at every node, also while its own gateway is dead and while NATS is gone. A logout at any ends it at all.
func TestLoginAtEveryNode(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	flags := tokenFlags(t)
	a, b, c := n.start("a", flags...), n.start("b", flags...), n.start("c", flags...)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	to := a
	browser := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	browser.Transport = balancer(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.URL.Host, r.Host = to.Addr, "localhost"
		return http.DefaultTransport.RoundTrip(r)
	})
	do := func(g *rig.Server, method, path, bearer string) (status int, location string) {
		t.Helper()
		to = g
		r, err := http.NewRequest(method, "http://localhost"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
		}
		res, err := browser.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode, res.Header.Get("Location")
	}
	status, at := do(a, "POST", "/login", tokenOfBob)
	if status != http.StatusNoContent {
		t.Fatalf("login: %d", status)
	}
	loggedIn := func(g *rig.Server, want int) {
		t.Helper()
		got := 0
		testkit.Eventually(t, fmt.Sprint("the answer is ", want), func() bool {
			got, _ = do(g, "GET", at, "")
			return got == want
		})
	}
	for _, g := range []*rig.Server{a, b, c} { // b and c may not know a yet, and answer 503
		loggedIn(g, http.StatusNoContent)
	}
	n.nats.Servers[0].Kill()
	a.KillGateway(t)
	for _, g := range []*rig.Server{b, a, c} { // a's next gateway has the login, too
		loggedIn(g, http.StatusNoContent)
	}
	if status, _ := do(c, "POST", at+"logout", ""); status != http.StatusSeeOther {
		t.Errorf("logout: %d", status)
	}
	for _, g := range []*rig.Server{a, b, c} {
		loggedIn(g, http.StatusSeeOther)
	}
}

type balancer func(r *http.Request) (*http.Response, error)

func (f balancer) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
