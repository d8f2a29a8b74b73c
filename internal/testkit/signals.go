// Package testkit has what the tests of several packages need.
package testkit

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
)

// HearSignals makes the programs that this test run starts handle HUP and INT by default, even if the run itself was started with those
// ignored (nohup, a shell's &): exec preserves ignored signals but resets caught ones. A TestMain calls it first. If nothing is ignored, it
// does nothing, so Ctrl-C still ends the run.
func HearSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// Start starts a program that gets a SIGTERM, or the death signal that cmd names, when the test run ends, however it ends; a panic runs no
// clean-up. The kernel sends the signal when the thread that started the program ends. Go's threads do end, for example after a test of
// namespaces. Therefore one thread that stays starts all programs.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	}
	done := make(chan error)
	starter() <- func() { done <- cmd.Start() }
	return <-done
}

var starter = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go startPrograms(jobs)
	return jobs
})

// startPrograms lives as long as the test run. Main does not count it as a leak.
func startPrograms(jobs <-chan func()) {
	runtime.LockOSThread()
	for job := range jobs {
		job()
	}
}
