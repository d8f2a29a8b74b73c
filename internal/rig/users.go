package rig

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"trl/internal/testkit"
)

// Sessions of another user (--session-user), a gateway that is not root (--user), and sessions that may write only to some places
// (--allow-write). Usually nobody has these uids; a uid needs no entry in /etc/passwd.
const (
	SessionUser = "64321"
	GatewayUser = "64320"
)

// lastUser is the number of uids that UserRange has returned.
var lastUser atomic.Int64

// UserRange returns a range of uids that no other test uses, also none in a folder that runs at the same time, because gateways do not know
// of each other's ranges.
func UserRange(n int64) string {
	end := 64400 + 2000*int64(testkit.Slot()) + lastUser.Add(n)
	return fmt.Sprintf("%d-%d", end-n, end-1)
}

func OnlyRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not run: only root can start processes of another user")
	}
}

// UserWays are the ways in which sessions run as another user than the gateway.
var UserWays = []struct {
	Name  string
	Flags func() []string
}{
	{"user", func() []string { return []string{"--session-user", SessionUser} }},
	{"range", func() []string { return []string{"--session-user", UserRange(20)} }},
	{"gateway", func() []string { return []string{"--session-user", UserRange(20), "--user", GatewayUser} }},
	{"fenced", func() []string { return []string{"--session-user", SessionUser, "--allow-write", Top} }},
}

// EachWay runs f for each of UserWays, in parallel, each with its own gateway.
func EachWay(t *testing.T, f func(t *testing.T, flags []string)) {
	OnlyRoot(t)
	for _, way := range UserWays {
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			f(t, way.Flags())
		})
	}
}
