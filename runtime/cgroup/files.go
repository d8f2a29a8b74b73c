package cgroup

import (
	"errors"
	"io/fs"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/descriptor"
)

// LimitFile is a file that sets a limit.
type LimitFile struct {
	Name, Text string
	Optional   bool // some kernels do not have it
}

// V2Files returns what to write into a group of v2 for the limit that a controller enforces.
func V2Files(controller string, l protocol.Limits) []LimitFile {
	switch controller {
	case "memory": // without swap, which would raise the limit
		return []LimitFile{{Name: "memory.max", Text: strconv.FormatInt(l.MemoryBytes, 10)}, {Name: "memory.swap.max", Text: "0", Optional: true}}
	case "pids":
		return []LimitFile{{Name: "pids.max", Text: strconv.FormatInt(l.Pids, 10)}}
	}
	return []LimitFile{{Name: "cpu.max", Text: CFSQuota(l.CPU) + " " + strconv.FormatInt(CFSPeriod.Microseconds(), 10)}}
}

// V1Files is V2Files for v1.
func V1Files(controller string, l protocol.Limits) []LimitFile {
	switch controller {
	case "memory": // the second file limits memory plus swap and must not be below the first
		bytes := strconv.FormatInt(l.MemoryBytes, 10)
		return []LimitFile{{Name: "memory.limit_in_bytes", Text: bytes}, {Name: "memory.memsw.limit_in_bytes", Text: bytes, Optional: true}}
	case "pids":
		return []LimitFile{{Name: "pids.max", Text: strconv.FormatInt(l.Pids, 10)}}
	}
	return []LimitFile{
		{Name: "cpu.cfs_period_us", Text: strconv.FormatInt(CFSPeriod.Microseconds(), 10)}, {Name: "cpu.cfs_quota_us", Text: CFSQuota(l.CPU)},
	}
}

func WriteFiles(dir string, files []LimitFile) error {
	for _, f := range files {
		if err := WriteFile(dir, f.Name, f.Text); err != nil && !(f.Optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// WriteFile writes to an existing file of the kernel, in one call.
func WriteFile(dir, name, text string) error {
	fd, err := OpenFile(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := descriptor.RetryEINTR(func() (int, error) { return unix.Write(fd, []byte(text)) }); err != nil {
		return &fs.PathError{Op: "write " + text + " to", Path: dir + "/" + name, Err: err}
	}
	return nil
}

func CFSQuota(cpus float64) string {
	quota := time.Duration(min(cpus, 1e6) * float64(CFSPeriod)) // bounds the product; no machine has a million processors
	return strconv.FormatInt(max(quota, time.Millisecond).Microseconds(), 10)
}

// CFSPeriod is the kernel's default. A session that has used up its share of a period waits for the next.
const CFSPeriod = 100 * time.Millisecond
