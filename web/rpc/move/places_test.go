package move

import (
	"fmt"
	"testing"
)

func TestPlacesAreBounded(t *testing.T) {
	p := Places{Max: MaxNamed}
	for i := range 3*MaxNamed + 1 {
		p.Note(fmt.Sprint(i), "other")
	}
	if n := len(p.epochs); n == 0 || n > MaxNamed || p.Of(fmt.Sprint(3*MaxNamed)) != "other" {
		t.Errorf("%d places are remembered", n)
	}
}
