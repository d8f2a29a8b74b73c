package stream

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestInputIsTakenWhole: a piece of input whose write fails half way leaves nothing behind, also for the next gateway, which looks at the file.
func TestInputIsTakenWhole(t *testing.T) {
	in, err := OpenStdin(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	const page = 4 << 10
	if err := unix.Ftruncate(in.mem, 2*page); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(in.mem), unix.F_ADD_SEALS, unix.F_SEAL_GROW); err != nil { // so only two pages can be written
		t.Fatal(err)
	}
	end, err := in.Add(0, make([]byte, 3*page), false)
	if err == nil || end != 0 {
		t.Errorf("%d, %v", end, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(in.mem, &st); err != nil || st.Size != 0 {
		t.Errorf("the file has %d bytes, %v", st.Size, err)
	}
	if end := in.End(); end != 0 {
		t.Errorf("the input has %d bytes", end)
	}
}
