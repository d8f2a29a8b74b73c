package protocol

import "strings"

// HasLabel reports whether a session with these labels is wanted: Label is "", key or key=value.
func (q *SessionList) HasLabel(labels map[string]string) bool {
	if q.Label == "" {
		return true
	}
	key, value, valued := strings.Cut(q.Label, "=")
	got, ok := labels[key]
	return ok && (!valued || got == value)
}
