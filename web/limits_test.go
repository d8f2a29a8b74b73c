package web

import (
	"strings"
	"testing"

	"trl/internal/testkit/limits"
)

// TestLimitsPage checks the bounds of docs/limits.md beside those of web/rpc, which that package checks.
func TestLimitsPage(t *testing.T) {
	limits.Check(t, func(constant string) bool {
		return !strings.HasPrefix(constant, "web/rpc.") && !strings.HasPrefix(constant, "web/rpc/bounds.")
	}, limitProbes)
}
