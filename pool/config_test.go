package pool

import (
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/protocol"
)

// TestConfigureIsForWhatComes: bounds, defaults and shells change for what is asked from then on, and nothing that is there ends.
func TestConfigureIsForWhatComes(t *testing.T) {
	c := Config{MaxSessions: 2, WarmShells: 2, DefaultShell: "/bin/sh", DefaultDir: "/usr", DefaultTimeout: time.Hour, IdleTimeout: time.Hour, MaxTimeout: time.Hour}
	r := newRig(t, c)
	one, two := r.create(protocol.SessionCreate{}), r.create(protocol.SessionCreate{})
	_, err := r.Create(t.Context(), me, &protocol.SessionCreate{})
	testkit.WantCode(t, err, protocol.MaxSessionsReached)
	nap := start(t, one, protocol.Exec{Command: "echo begun; sleep 300"})
	output(t, nap, "begun")

	c.MaxSessions, c.DefaultShell, c.DefaultDir, c.WarmShells = 3, "/bin/bash", "/tmp", 3
	c.IdleTimeout, c.DefaultTimeout, c.MaxTimeout = time.Minute, time.Minute, time.Minute
	r.Configure(c)
	three := r.create(protocol.SessionCreate{})
	want(t, three, "echo ${BASH##*/}; pwd", "bash\n/tmp\n")
	if three.settings.Load().Idle != time.Minute || three.settings.Load().Timeout != time.Minute || one.settings.Load().Idle != time.Hour || one.settings.Load().Timeout != time.Hour {
		t.Errorf("%+v, %+v", three.spec, one.spec)
	}
	if e := start(t, two, protocol.Exec{Command: "true", Timeout: of(protocol.Seconds(3600))}); e.timeout != time.Minute {
		t.Errorf("timeout %s", e.timeout)
	}
	want(t, two, "echo ${BASH-none}; pwd", "none\n/usr\n")
	testkit.Eventually(t, "warm shells are of the new kind, and as many", func() bool {
		ready := r.warm.Ready()
		for _, ws := range ready {
			if !strings.HasSuffix(ws.Path, "/bash") {
				return false
			}
		}
		return len(ready) == 3
	})

	c.MaxSessions, c.WarmShells = 1, 0
	r.Configure(c)
	_, err = r.Create(t.Context(), me, &protocol.SessionCreate{})
	if e := testkit.WantCode(t, err, protocol.MaxSessionsReached); e.Details["limit"] != 1 {
		t.Errorf("%v", e.Details)
	}
	testkit.Eventually(t, "no warm shells", func() bool { return len(r.warm.Ready()) == 0 })
	for _, s := range []*Session{one, two, three} {
		if !s.IsOpen() {
			t.Error("a session ended")
		}
	}
	select {
	case <-nap.Done():
		t.Error("a command ended")
	default:
	}
	c.WarmShells = 1
	r.Configure(c)
	testkit.Eventually(t, "one warm shell", func() bool { return len(r.warm.Ready()) == 1 })
}

// TestConfigureAmongRequests is for the race detector: everybody reads rules that somebody else replaces.
func TestConfigureAmongRequests(t *testing.T) {
	c := Config{MaxSessions: 8, WarmShells: 1}
	r := newRig(t, c)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				s, err := r.Create(t.Context(), me, &protocol.SessionCreate{})
				if err != nil {
					t.Error(err)
					return
				}
				want(t, s, "echo x", "x\n")
				if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
					t.Error(err)
				}
				r.Stats()
				r.DropExpired(time.Now())
			}
		})
	}
	for i := range 50 {
		c.MaxSessions, c.WarmShells, c.RingBytes = 8+i, i%3, 1<<20+i
		r.Configure(c)
		time.Sleep(time.Millisecond) // not a synchronisation: to spread them
	}
	all.Wait()
}
