package restoring

import "testing"

func TestRequestsWaitForTheirSession(t *testing.T) {
	s := New([]string{"a", "b"})
	await := func(id string) chan error {
		done := make(chan error, 1)
		go func() { done <- s.Await(id) }() // ends with Done or AllDone
		return done
	}
	a, b, all, other := await("a"), await("b"), await(""), await("other")
	if err := <-other; err != nil {
		t.Error(err)
	}
	s.Done("a")
	if err := <-a; err != nil || s.Contains("a") || !s.Contains("b") || s.Contains("other") {
		t.Errorf("%v: a %t, b %t, other %t", err, s.Contains("a"), s.Contains("b"), s.Contains("other"))
	}
	select {
	case <-b:
		t.Error("b does not wait")
	case <-all:
		t.Error("nobody waits for all")
	default:
	}
	s.Done("b")
	s.AllDone()
	if err := <-b; err != nil {
		t.Error(err)
	}
	if err := <-all; err != nil {
		t.Error(err)
	}
	if s = nil; s.Await("") != nil || s.Contains("a") {
		t.Error("a gateway that restores nothing waits")
	}
}
