package cluster

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"trl/internal/natsrig"
	"trl/internal/rig"
	"trl/internal/testkit"
)

// What `make cluster` starts is a whole cluster, and nothing of it is left afterwards.
func TestClusterToTry(t *testing.T) {
	t.Parallel()
	testkit.StartsProcesses(t)
	nats, err := natsrig.Program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../../deploy/cluster.sh", rig.Binary, "nodes")
	cmd.Env = append(os.Environ(), "TRL_TEST_PROGRAM="+rig.Binary, "TRL_TEST_NATS="+nats, "TMPDIR="+t.TempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, node := range []string{"n1 *  ready", "n2    ready", "n3    ready"} {
		if !strings.Contains(string(out), node) {
			t.Errorf("no %q in\n%s", node, out)
		}
	}
}
