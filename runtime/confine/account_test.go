package confine

import (
	"slices"
	"testing"
)

func TestParseAccount(t *testing.T) {
	for text, want := range map[string]Account{
		"64123":       {Text: "64123", UID: 64123, GID: 64123},
		"64123:7":     {Text: "64123:7", UID: 64123, GID: 7},
		"64123-64125": {Text: "64123-64125", UID: 64123, GID: 64123, Last: 64125},
	} {
		if a, err := ParseAccount(text, true); err != nil || a.UID != want.UID || a.GID != want.GID || a.Last != want.Last || a.Text != text {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
	}
	for _, text := range []string{"", "root", "0", "0:0", "0-5", "5-4", "4294967295", "1-4294967295", "1:x", "no-such-user-1", "-5", "5-"} {
		if a, err := ParseAccount(text, true); err == nil {
			t.Errorf("%q: %+v", text, a)
		}
	}
	if a, err := ParseAccount("5-6", false); err == nil {
		t.Errorf("a range: %+v", a)
	}
	if a, err := ParseAccount("nobody", false); err == nil && (a.Name != "nobody" || a.UID == 0) {
		t.Errorf("nobody: %+v", a)
	}
	env := (&Account{Text: "64123", UID: 64123, GID: 64123}).Environment(5, []string{"A=b", "HOME=/h"})
	if want := []string{"A=b", "HOME=/h", "USER=5", "LOGNAME=5"}; !slices.Equal(env, want) {
		t.Errorf("%q, want %q", env, want)
	}
}
