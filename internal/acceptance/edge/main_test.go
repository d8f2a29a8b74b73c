package edge

import (
	"testing"

	"trl/internal/natsrig"
	"trl/internal/rig"
	"trl/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.ActAwkward(nil)
	natsrig.Main(m)
}

type object = rig.Object
