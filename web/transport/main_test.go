package transport

import (
	"testing"
	"time"

	"trl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is how long anything may take on a busy machine before a test gives up.
const patience = 60 * time.Second
