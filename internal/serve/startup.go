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

// hideEnviron empties /proc/PID/environ, which every session of the same user could read. That file shows the memory where the kernel put
// our environment at exec, whatever os.Clearenv does. The program itself sees the same variables as before.
//
// It must run before anything else: Go's strings of the environment point into that memory. hideEnviron copies them first, but a string
// that somebody else already holds would change. It writes through /proc/self/mem, because prctl(PR_SET_MM) needs a capability and a plain
// store an unsafe pointer.
func hideEnviron() error {
	kept := os.Environ()
	for i := range kept {
		kept[i] = strings.Clone(kept[i])
	}
	os.Clearenv()
	for _, kv := range kept {
		if k, v, ok := strings.Cut(kv, "="); ok {
			_ = os.Setenv(k, v) // the kernel gave us the variable, so its name is valid
		}
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	// proc_pid_stat(5): field 2, the name, may contain spaces; env_start and env_end are fields 50 and 51.
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

// Startup says how `trl serve` was started.
type Startup struct {
	exposed  error            // why sessions may read our environment
	handover *keeper.Handover // the state of the keeper that we continue; nil: none
}

// ReadEnvironment must run before anything reads the environment. asked: a keeper only wanted to know whether we could continue it.
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
