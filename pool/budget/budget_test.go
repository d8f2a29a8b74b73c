package budget

import "testing"

func TestBudgetBoundsEachAndAll(t *testing.T) {
	b := Budget{PrincipalLimit: 10, TotalLimit: 15}
	for _, c := range []struct {
		who  string
		n    int64
		want bool
	}{{"a", 10, true}, {"a", 1, false}, {"b", 6, false}, {"b", 5, true}, {"c", 1, false}} {
		if got := b.Reserve(c.who, c.n); got != c.want {
			t.Errorf("Reserve(%s, %d) = %t", c.who, c.n, got)
		}
	}
	if who, exceeds := b.Heaviest(); who != "a" || exceeds || b.Exceeds("a") {
		t.Errorf("%s has the most, exceeds %t", who, exceeds)
	}
	b.Add("b", 1)
	if who, exceeds := b.Heaviest(); who != "a" || !exceeds || !b.Exceeds("c") {
		t.Errorf("%s has the most, exceeds %t: all have too much", who, exceeds)
	}
	b.Add("a", -10)
	b.Add("b", 5)
	if who, exceeds := b.Heaviest(); who != "b" || !exceeds || !b.Exceeds("b") || b.Exceeds("a") {
		t.Errorf("%s has the most, exceeds %t: it has too much", who, exceeds)
	}
	b.Add("b", -11)
	if len(b.byPrincipal) != 0 || b.total != 0 {
		t.Errorf("%+v is left", b.byPrincipal)
	}
}
