package source

import "testing"

func TestWholeText(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int64
		want  string
	}{
		{"abc", 5, "abc"}, {"abc", 2, "ab"}, {"aé", 2, "a"}, {"éa", 1, "é"}, {"\xff\xfe\xfd", 2, "\xff\xfe"},
	} {
		if got := cutBetweenCharacters([]byte(c.in), c.limit); string(got) != c.want {
			t.Errorf("%q to %d: %q", c.in, c.limit, got)
		}
	}
}
