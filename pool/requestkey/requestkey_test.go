package requestkey

import (
	"context"
	"fmt"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/protocol"
)

func TestRequestKeysAreBounded(t *testing.T) {
	var k Table
	k.SetMax(1000)
	now := time.Now()
	try := func(who string, i int) (int, error) {
		ref := Ref{Owner: who, Key: fmt.Sprint(i)}
		n, err := Once(t.Context(), &k, ref, FingerprintOf("m", i), func() (int, error) { return i, nil })
		if err == nil {
			k.Complete(ref, now)
		}
		return n, err
	}
	for i := range 1000 {
		if _, err := try("tester", i); err != nil {
			t.Fatal(err)
		}
	}
	_, err := try("tester", 1000) // refused, rather than that another one is forgotten
	if d := testkit.WantCode(t, err, protocol.LimitExceeded).Details; d["field"] != "request_key" || d["limit"] != 1000 {
		t.Errorf("details %v", d)
	}
	if n, err := try("tester", 0); n != 0 || err != nil {
		t.Errorf("a retry: %d %v", n, err)
	}
	if _, err := try("another", 1000); err != nil {
		t.Errorf("another principal: %v", err)
	}
	k.DropExpired(now.Add(Retention))
	if len(k.requests) != 0 || len(k.completed) != 0 || len(k.counts) != 0 || k.count != 0 {
		t.Fatalf("%d keys after their time", len(k.requests))
	}
	ctx, cancel := context.WithCancel(t.Context())
	inside := make(chan struct{})
	go Once(t.Context(), &k, Ref{Key: "slow"}, FingerprintOf("m", 1), func() (int, error) { close(inside); <-ctx.Done(); return 0, ctx.Err() })
	<-inside
	cancel()
	if _, err := Once(ctx, &k, Ref{Key: "slow"}, FingerprintOf("m", 1), func() (int, error) { return 1, context.Canceled }); err == nil {
		t.Fatal("joined what failed, and got a value")
	}
}

// A request that is sent twice runs once; a request that named no session is also found from another session.
func TestOnceRunsOnce(t *testing.T) {
	inDefault, inOther := Ref{Owner: "o", Scope: "s-1", Key: "k", NamesNoSession: true}, Ref{Owner: "o", Scope: "s-2", Key: "k", NamesNoSession: true}
	for name, c := range map[string]struct {
		again  Ref
		params string
		want   string // "": refused
	}{
		"the same request":                    {inDefault, "p", "first"},
		"from another default session":        {inOther, "p", "first"},
		"by the id of its session":            {Ref{Owner: "o", Scope: "s-1", Key: "k"}, "p", "first"},
		"by the id of another session":        {Ref{Owner: "o", Scope: "s-2", Key: "k"}, "p", "second"},
		"another owner's":                     {Ref{Owner: "x", Scope: "s-1", Key: "k", NamesNoSession: true}, "p", "second"},
		"a guest's":                           {Ref{Owner: "o", Guest: "l-1", Scope: "s-1", Key: "k"}, "p", "second"},
		"the same key, with different params": {inDefault, "q", ""},
	} {
		var table Table
		call := func(ref Ref, params, made string) (string, error) {
			return Once(t.Context(), &table, ref, FingerprintOf("m", params), func() (string, error) { return made, nil })
		}
		if _, err := call(inDefault, "p", "first"); err != nil {
			t.Fatal(err)
		}
		got, err := call(c.again, c.params, "second")
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

type tombstone string

func (s tombstone) Answer() any { return "anew " + string(s) }

// A retry is answered by the tombstone once the work has ended, and after a restore by what was restored.
func TestTombstonesAnswerRetries(t *testing.T) {
	var table Table
	ref, params := Ref{Owner: "o", Scope: "s-1", Key: "k"}, FingerprintOf("m", 1)
	retry := func(table *Table) string {
		t.Helper()
		got, err := Once(t.Context(), table, ref, params, func() (string, error) { return "made", nil })
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	retry(&table)
	q := table.Find(ref)
	table.KeepTombstone(q, tombstone("x"))
	if got := retry(&table); got != "anew x" {
		t.Errorf("after the end: %q", got)
	}
	now := time.Now()
	table.Complete(ref, now)
	if table.IsExpired(q, now) || !table.IsExpired(q, now.Add(Retention)) {
		t.Error("the retention time does not begin with the completion")
	}
	var next Table
	next.Restore("o", New(ref, params[:]), tombstone("y"), now)
	if got := retry(&next); got != "anew y" {
		t.Errorf("restored: %q", got)
	}
	next.Drop(ref)
	if got := retry(&next); got != "made" {
		t.Errorf("after Drop: %q", got)
	}
}
