package escalate

import (
	"syscall"

	"trl/runtime/procfs"
)

// Signalled says how each process got a signal. A process between its fork and its exec may lose the signal, because it still
// ignores or catches what its shell does: it gets the signal again after the exec. A subshell, which never calls exec, gets it once.
type Signalled map[int]delivery

type delivery int

const (
	notSent        delivery = iota
	sentIgnored             // the process ignored it
	sentBeforeExec          // the process had called no exec
	delivered
)

// Due returns those of pids that are to get sig now, and records that they get it.
func (s Signalled) Due(sig syscall.Signal, pids []int) (due []int) {
	for _, pid := range pids {
		p, _ := procfs.Read(pid)
		if s[pid] == delivered || s[pid] == sentBeforeExec && p.BeforeExec {
			continue
		}
		switch {
		case procfs.Ignores(pid, sig):
			s[pid] = sentIgnored
		case p.BeforeExec:
			s[pid] = sentBeforeExec
		default:
			s[pid] = delivered
		}
		due = append(due, pid)
	}
	return due
}

// Got reports whether a process has got the signal and did not ignore it then.
func (s Signalled) Got(pid int) bool { return s[pid] >= sentBeforeExec }
