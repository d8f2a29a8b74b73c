package host

import (
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/procfs"
)

// An Instance names one Host in every process that comes from its sessions (see endMarks). Whoever knows it finds what a Host
// that died left behind, wherever that has been reparented to, and nothing else: the number is random, and its owner says
// of which boot it is.
type Instance uint32

// NewInstance makes one that nobody has.
func NewInstance() Instance { return Instance(1 + rand.Uint32N(1<<30)) }

// KillLeftovers kills what a dead Host left, until nothing is found any more, and returns the pids; it removes that Host's ports, too. Only for an instance whose Host
// is gone for certain. patience bounds it.
func (i Instance) KillLeftovers(timeout time.Duration) (ended []int) {
	if i == 0 {
		return nil
	}
	ours := func(pid int) bool { return procfs.ReadMark(pid)>>32 == procfs.Mark(i) }
	const enough = 3 // what forks and exits all the time may have been between two places during one look
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
			if procfs.SignalIf(pid, unix.SIGKILL, ours) && !slices.Contains(ended, pid) { // it may take more than one look to die
				ended = append(ended, pid)
			}
		}
		pause.Sleep()
	}
	removeFIFODir(i)
	return ended
}
