package host

import (
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/procfs"
)

// An Instance names one Host. It is part of the mark of every process that comes from the Host's sessions (see
// procfs.Mark). With it we can find the processes that a dead Host left, whatever their parents are now, and no others:
// the number is random, and whoever stores it also stores the boot it belongs to.
type Instance uint32

// NewInstance returns a random instance.
func NewInstance() Instance { return Instance(1 + rand.Uint32N(1<<30)) }

// KillLeftovers kills the processes that a dead Host left, until it finds no more or timeout has passed, and returns
// their pids. It also removes that Host's FIFO directory. It may be called only if the Host is certainly gone.
func (i Instance) KillLeftovers(timeout time.Duration) (ended []int) {
	if i == 0 {
		return nil
	}
	ours := func(pid int) bool { return procfs.ReadMark(pid)>>32 == procfs.Mark(i) }
	const enough = 3 // a process that forks and exits all the time may escape one look
	var pause procfs.Backoff
	for until, quiet := time.Now().Add(timeout), 0; quiet < enough && time.Now().Before(until); quiet++ {
		for _, pid := range descriptor.NumbersIn("/proc") {
			if !ours(pid) {
				continue
			}
			if p, ok := procfs.Read(pid); !ok || p.Dead() {
				continue
			}
			quiet = -1
			if procfs.SignalIf(pid, unix.SIGKILL, ours) && !slices.Contains(ended, pid) { // a process may need more than one look to end
				ended = append(ended, pid)
			}
		}
		pause.Sleep()
	}
	removeFIFODir(i)
	return ended
}
