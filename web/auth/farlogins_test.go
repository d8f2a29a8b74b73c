package auth

import (
	"context"
	"crypto/sha256"
	"testing"
	"time"

	"trl/protocol"
)

// noOthers are nodes that have no login.
type noOthers struct{ Others }

func (noOthers) Ask(context.Context, string, string, any, any) *protocol.Error { return nil }

// TestFarLoginIsForgotten: a login of another node is kept while requests or connections use it.
func TestFarLoginIsForgotten(t *testing.T) {
	f := newFarLogins(noOthers{})
	defer f.close()
	hash := sha256.Sum256([]byte("a login"))
	l := f.add(hash, &farLogin{mark: "0123abcd", credential: newCredentialState(Terms{})})
	for _, c := range []struct {
		after time.Duration
		used  bool // by a connection
		kept  bool
	}{{forgetLoginAfter, false, true}, {2 * forgetLoginAfter, true, true}, {forgetLoginAfter + time.Second, false, false}} {
		stop := func() {}
		if c.used {
			stop = l.grant(hash).OnExpiry(func() {})
		}
		f.inUse(l.used.Add(c.after))
		stop()
		if kept := f.known[hash] != nil; kept != c.kept {
			t.Errorf("after %s, used by a connection %v: kept %v", c.after, c.used, kept)
		}
	}
}
