package share

import (
	"testing"
	"time"

	"trl/protocol"
)

// A link expires after the time that was asked for, or with the credential that made it, whichever comes first, also after a restore.
func TestLinksExpire(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		life  *protocol.Seconds
		until time.Time
		want  time.Duration
	}{
		"by default":            {nil, time.Time{}, protocol.ShareTime * time.Second},
		"as asked for":          {new(protocol.Seconds(60)), time.Time{}, time.Minute},
		"with its credential":   {new(protocol.Seconds(60)), now.Add(30 * time.Second), 30 * time.Second},
		"before its credential": {new(protocol.Seconds(60)), now.Add(time.Hour), time.Minute},
	} {
		l, token := New("l-1", &protocol.ShareCreate{ExpiresIn: c.life, Name: "n", Mode: "control", TermID: "t-1"}, "c", c.until)
		if !IsToken(token) || l.Hash() != HashOf(token) || IsToken("trl_x") {
			t.Errorf("%s: token %.12s", name, token)
		}
		for what, l := range map[string]*Link{"made": l, "restored": Restore(l.Entry())} {
			if l.Expired(now.Add(c.want-10*time.Second)) || !l.Expired(now.Add(c.want+10*time.Second)) {
				t.Errorf("%s, %s: it does not expire in %v: %+v", name, what, c.want, l.Info("s"))
			}
			if i := l.Info("s"); i.ShareID != "l-1" || i.SessionID != "s" || i.TermID != "t-1" || i.Mode != "control" || i.Name != "n" || l.CredentialID() != "c" || l.Hash() != HashOf(token) {
				t.Errorf("%s, %s: %+v", name, what, i)
			}
		}
		l.End()
		if !l.IsOver() {
			t.Errorf("%s: it is not over after its end", name)
		}
	}
}
