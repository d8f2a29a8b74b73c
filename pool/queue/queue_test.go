package queue

import (
	"slices"
	"testing"

	"trl/protocol"
)

func TestFirstComeFirstServed(t *testing.T) {
	var q Queue[string]
	for _, x := range []string{"a", "b", "c", "d"} {
		q.Push(x, 1)
	}
	if !q.Remove("b") || q.Remove("b") {
		t.Error("what waits is not removed once")
	}
	if x, ok := q.Pop(); x != "a" || !ok {
		t.Errorf("popped %q %t", x, ok)
	}
	if all := q.Clear(); !slices.Equal(all, []string{"c", "d"}) || q.Len() != 0 {
		t.Errorf("%q are left", all)
	}
	if x, ok := q.Pop(); ok {
		t.Errorf("popped %q of none", x)
	}
}

// A queue is bounded in number and in bytes; the first item has room whatever its size.
func TestQueueIsBounded(t *testing.T) {
	for size, most := range map[int]int{0: maxLen, maxBytes / 4: 4, maxBytes + 1: 1} {
		var q Queue[int]
		for q.HasRoom(size) {
			q.Push(q.Len(), size)
		}
		if q.Len() != most {
			t.Errorf("%d items of %d bytes wait, want %d", q.Len(), size, most)
		}
	}
	if n := SizeOf(&protocol.Exec{Command: "abc", Stdin: new("de"), Env: protocol.Env{"f": new("gh"), "i": nil}}); n != 9 {
		t.Errorf("a command of 9 bytes holds %d", n)
	}
}
