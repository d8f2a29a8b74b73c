package kv

import (
	"testing"

	"trl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
