package keeper

import (
	"bytes"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"trl/protocol"
	"trl/runtime/cgroup"
	"trl/runtime/host"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

func TestWillIsReadAsItWasWritten(t *testing.T) {
	w := &Handover{
		Version: wire.Version, Program: "/bin/trl", Env: []string{"A=b=c", "B="}, Held: []int{7}, Epoch: "e", Generation: 3, Serial: 1 << 60, Remembered: []byte("r\x00"),
		Listeners: []listener{{"http", 5}}, Signals: [2]int{8, 9}, Numbers: wire.Numbers{GatewayCrashes: 2},
		Host: host.HandoverState{
			Instance: 77, FIFODir: "/p", FIFODirLock: new(13), Tier: "cgroup", Root: &cgroup.RootState{Dir: "/d", Path: "/p", Lock: 11},
			Hierarchies: map[string]cgroup.HierarchyState{"pids": {Dir: "/d", Root: &cgroup.RootState{Lock: 12}}, "cpu": {Why: "none"}},
			Groups: []host.GroupState{{
				ID: "s-1", Orphans: -1, Init: 99, Leaders: []int{99},
				Bounds: &host.LimitsState{Limits: protocol.Limits{CPU: 0.5}, Resources: []int{1}, Most: []uint64{1<<63 + 1}},
				Scopes: []host.ScopeState{{Number: 1, Mark: 1<<63 + 5, List: 14}},
			}},
			Children: []host.ChildState{{Pid: 99, Pidfd: 15, Group: "s-1", Scope: 1}, {Pid: 100, Pidfd: -1}},
		},
		Sessions: []savedSession{{ID: "s-1", Held: [][2]int{{1 << 24, 16}}, Children: []savedChild{
			{Number: 4, Pid: 99, Pidfd: 15}, {Number: 5, Pid: 98, Pidfd: 17, Ended: wire.StatusOf(own.Status{Code: 3, CPU: time.Second}), ExitSent: true},
		}}},
		Gateway: savedGateway{Pid: 100, Link: 18, Began: time.Unix(1, 0).UTC()},
	}
	got, err := sealAndRead(t, w)
	if err != nil {
		t.Fatal(err)
	}
	text := func(w *Handover) []byte { return must(json.Marshal(w, json.Deterministic(true))) }
	if !bytes.Equal(text(got), text(w)) {
		t.Errorf("got  %s\nwant %s", text(got), text(w))
	}
	want := map[int]bool{7: true, 5: true, 8: true, 9: true, 11: true, 12: true, 13: true, 14: true, 15: true, 16: true, 17: true, 18: true}
	for _, fd := range got.descriptors() {
		if !want[fd] {
			t.Errorf("descriptor %d", fd)
		}
		delete(want, fd)
	}
	if len(want) > 0 {
		t.Errorf("not kept open: %v", want)
	}
}

func TestWillOfAnotherVersionIsRefused(t *testing.T) {
	_, err := sealAndRead(t, &Handover{Version: wire.Version + 1})
	if v := (*wire.VersionError)(nil); !errors.As(err, &v) {
		t.Errorf("%v", err)
	}
	if _, err := readHandover("2"); err == nil {
		t.Error("stderr is no will")
	}
	if _, err := readHandover("many"); err == nil {
		t.Error("no number")
	}
}

func sealAndRead(t *testing.T, w *Handover) (*Handover, error) {
	t.Helper()
	fd, err := w.seal()
	if err != nil {
		t.Fatal(err)
	}
	return readHandover(strconv.Itoa(fd)) // readHandover closes the descriptor, or the process does
}
