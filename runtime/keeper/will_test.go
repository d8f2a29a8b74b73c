package keeper

import (
	"bytes"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"trl/protocol"
	"trl/runtime"
)

func TestWillIsReadAsItWasWritten(t *testing.T) {
	w := &Will{
		Version: Version, Program: "/bin/trl", Env: []string{"A=b=c", "B="}, Held: []int{7}, Epoch: "e", Generation: 3, Serial: 1 << 60, Recalled: []byte("r\x00"),
		Listeners: []listener{{"http", 5}}, Signals: [2]int{8, 9}, Numbers: Numbers{GatewayCrashes: 2},
		Host: runtime.Bequest{
			Instance: 77, Ports: "/p", Lock: new(13), Tier: "cgroup", Root: &runtime.RootBequest{Dir: "/d", Path: "/p", Lock: 11},
			Hierarchies: map[string]runtime.HierarchyBequest{"pids": {Dir: "/d", Root: &runtime.RootBequest{Lock: 12}}, "cpu": {Why: "none"}},
			Groups: []runtime.GroupBequest{{
				ID: "s-1", Orphans: -1, Init: 99, Leaders: []int{99},
				Bounds: &runtime.BoundsBequest{Limits: protocol.Limits{CPU: 0.5}, Resources: []int{1}, Most: []uint64{1<<63 + 1}},
				Cells:  []runtime.CellBequest{{Number: 1, Mark: 1<<63 + 5, List: 14}},
			}},
			Children: []runtime.ChildBequest{{Pid: 99, Pidfd: 15, Group: "s-1", Cell: 1}, {Pid: 100, Pidfd: -1}},
		},
		Sessions: []sessionWill{{ID: "s-1", Held: [][2]int{{1 << 24, 16}}, Children: []childWill{
			{Number: 4, Pid: 99, Pidfd: 15}, {Number: 5, Pid: 98, Pidfd: 17, Ended: statusOf(runtime.Status{Code: 3, CPU: time.Second}), Told: true},
		}}},
		Gateway: gatewayWill{Pid: 100, Link: 18, Began: time.Unix(1, 0).UTC()},
	}
	got, err := sealAndRead(t, w)
	if err != nil {
		t.Fatal(err)
	}
	text := func(w *Will) []byte { return must(json.Marshal(w, json.Deterministic(true))) }
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
	_, err := sealAndRead(t, &Will{Version: Version + 1})
	if v := (*VersionError)(nil); !errors.As(err, &v) {
		t.Errorf("%v", err)
	}
	if _, err := readWill("2"); err == nil {
		t.Error("stderr is no will")
	}
	if _, err := readWill("many"); err == nil {
		t.Error("no number")
	}
}

func sealAndRead(t *testing.T, w *Will) (*Will, error) {
	t.Helper()
	fd, err := w.seal()
	if err != nil {
		t.Fatal(err)
	}
	return readWill(strconv.Itoa(fd)) // closes it, or the process does
}
