package protocol

import "testing"

// TestEveryMethodSaysWhetherItIsRepeated: a new method needs a decision, and the keyed ones are those that have a request_key.
func TestEveryMethodSaysWhetherItIsRepeated(t *testing.T) {
	for _, m := range methods {
		r, ok := repeats[m.Name]
		if !ok {
			t.Errorf("%s is not in the table of repeats", m.Name)
		}
		_, keyed := m.Params.FieldByName("RequestKey")
		if keyed != (r == RepeatKeyed) {
			t.Errorf("%s: repeated %s, and has a request_key: %v", m.Name, r, keyed)
		}
	}
	if len(repeats) != len(methods) {
		t.Errorf("%d methods, %d in the table of repeats", len(methods), len(repeats))
	}
}
