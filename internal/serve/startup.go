package serve

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"trl/runtime/keeper"
	"trl/runtime/keeper/client"
)

// hideEnviron makes /proc/PID/environ empty, which every session of the same user could read: it shows the memory where the
// kernel put our environment at exec, whatever os.Clearenv says. What the program itself sees stays as it was.
//
// It must come before anything else: Go's strings of the environment point into that memory, so they are copied first, and
// whoever already held one would see it change. Written by /proc/self/mem, because prctl(PR_SET_MM) needs a capability and a
// plain store an unsafe pointer.
func hideEnviron() error {
	kept := os.Environ()
	for i := range kept {
		kept[i] = strings.Clone(kept[i])
	}
	os.Clearenv()
	for _, kv := range kept {
		if k, v, ok := strings.Cut(kv, "="); ok {
			_ = os.Setenv(k, v) // as it came from the kernel, so the name is a name
		}
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	// proc_pid_stat(5): the name, field 2, may hold spaces; env_start and env_end are 50 and 51.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 49 {
		return errors.New("/proc/self/stat has no env_start")
	}
	start, err1 := strconv.ParseInt(fields[47], 10, 64)
	end, err2 := strconv.ParseInt(fields[48], 10, 64)
	if err := errors.Join(err1, err2); err != nil || start == 0 || end < start {
		return fmt.Errorf("env_start %s, env_end %s", fields[47], fields[48])
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	_, err = mem.WriteAt(make([]byte, end-start), start)
	return err
}

// A Startup is how `trl serve` was started.
type Startup struct {
	exposed  error            // why sessions may read our environment
	handover *keeper.Handover // of the keeper that we go on as; nil: none
}

// ReadEnvironment comes before anything reads the environment. asked: a keeper wanted to know whether we could go on as it, no more.
func (b *Startup) ReadEnvironment() (asked bool, err error) {
	b.exposed = hideEnviron()
	if asked, err = keeper.CheckHandover(); asked || err != nil {
		return asked, err
	}
	if b.handover, err = keeper.ReadHandover(); err != nil {
		return false, err
	}
	return false, client.RestoreEnviron()
}
