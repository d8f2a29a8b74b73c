package main

import (
	"os/exec"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"trl/client"
	"trl/internal/testkit"
	"trl/protocol"
)

// TestLogsTellEveryHole: of a process that prints faster than anybody reads, trl logs prints everything, or says where a part is missing.
func TestLogsTellEveryHole(t *testing.T) {
	testkit.StartsProcesses(t)
	for _, ring := range []string{"4194304", "65536"} { // between two requests a process prints more than the smaller ring holds
		t.Run(ring, func(t *testing.T) { logsTellEveryHole(t, ring) })
	}
}

func logsTellEveryHole(t *testing.T, ring string) {
	g := startGateway(t, "--ring-bytes", ring)
	ctx, c := dial(t, client.Options{URL: "http://" + g.addr})
	p, err := c.StartProcess(ctx, "yes 0123456789abcdefghijklmnopqrstuvwxyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	for ; p.Info().OutputBytes < 8<<20; time.Sleep(20 * time.Millisecond) {
		if err := p.Refresh(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		out, err := exec.CommandContext(ctx, "trl", "logs", "--json", "--url", "http://"+g.addr, p.ID()).Output()
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			protocol.Logs
			Gaps []protocol.GapRange `json:"gaps"`
		}
		if err := json.Unmarshal(out, &d); err != nil {
			t.Fatal(err)
		}
		told := map[int64]int64{}
		for _, g := range d.Gaps {
			told[g.From] = g.To
		}
		at := int64(0)
		for _, k := range d.Chunks {
			if k.Offset != at && told[at] != k.Offset {
				t.Errorf("a hole from %d to %d", at, k.Offset)
			}
			at = k.Offset + int64(len(k.Data))
		}
		if at == 0 || at != d.NextOffset || d.EOF {
			t.Errorf("ends at %d, next %d, eof %v", at, d.NextOffset, d.EOF)
		}
	}
}
