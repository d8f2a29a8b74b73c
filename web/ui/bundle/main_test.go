package main

import "testing"

// TestBundleIsCurrent: dist was made from the sources that stand beside it. It needs no Node.
func TestBundleIsCurrent(t *testing.T) {
	if err := page.Check(); err != nil {
		t.Error(err)
	}
}
