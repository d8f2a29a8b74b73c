package main

import (
	"os"
	"strings"
	"testing"
)

// TestBundleIsCurrent: dist was made from the sources that stand beside it. It needs no Node.
func TestBundleIsCurrent(t *testing.T) {
	sum, err := hash(os.DirFS(".."))
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := os.ReadFile("../dist/sources.sha256")
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(recorded)) != sum {
		t.Error("the sources have changed since dist was made: go generate ./client/typescript/bundle")
	}
}
