package cluster

import (
	"context"
	"os"
	"os/exec"
	"regexp"
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
	ctx, cancel := context.WithTimeout(t.Context(), 3*testkit.Patience) // six processes start, and as many commands follow each other
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../../deploy/cluster.sh", "sh", "-ec", `"$TRL_TEST_PROGRAM" nodes
"$TRL_TEST_PROGRAM" run --session here --node n3 -- x=1
"$TRL_TEST_PROGRAM" run --session here -- 'echo x is $x'
"$TRL_TEST_PROGRAM" run --where zone=z2 -- true
"$TRL_TEST_PROGRAM" stats --node n3
"$TRL_TEST_PROGRAM" ls`)
	cmd.Env = append(os.Environ(), "TRL_TEST_PROGRAM="+rig.Binary, "TRL_TEST_NATS="+nats, "TMPDIR="+t.TempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`(?m)^n1 \*  ready`, `(?m)^n2    ready`, `(?m)^n3    ready`, `x is 1`, `(?m)^sessions +1 of \d+ `, `(?m)^s-\S+ +here .* n3 +-$`, `(?m)^s-\S+ +default .* n2 +zone=z2$`} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
