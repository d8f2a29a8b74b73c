package endings

import (
	"testing"

	"trl/internal/natsrig"
	"trl/internal/rig"
)

func TestMain(m *testing.M) { natsrig.Main(m) }

type object = rig.Object
