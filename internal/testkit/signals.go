// Package testkit holds what the tests of several packages need.
package testkit

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// HearSignals makes the programs that this test run starts take HUP and INT by default even where the run itself was
// started with those ignored (nohup, a shell's &): an ignored signal is inherited across exec, a caught one is not. A
// TestMain calls it first. Where nothing is ignored it does nothing, so Ctrl-C still ends the run.
func HearSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// EndWithUs has the kernel send SIGTERM to the program when the test run ends, however it ends: a panic runs no clean-up.
func EndWithUs(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
}
