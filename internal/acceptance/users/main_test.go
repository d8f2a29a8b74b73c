package users

import (
	"testing"

	"trl/internal/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

type object = rig.Object
