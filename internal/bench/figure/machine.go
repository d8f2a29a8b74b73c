package figure

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Machine says where and what was measured; figures mean nothing without it.
type Machine struct {
	CPU    string  `json:"cpu"`
	Cores  int     `json:"cores"`
	Memory uint64  `json:"memory_bytes"`
	Kernel string  `json:"kernel"`
	Arch   string  `json:"arch"`
	Go     string  `json:"go"`
	Commit string  `json:"commit,omitempty"` // or the gateway's version, if it is not ours
	Tier   string  `json:"tier,omitempty"`   // of isolation
	Load   float64 `json:"load"`             // over the last minute before the run
	Date   string  `json:"date"`
}

// ThisMachine describes this machine.
func ThisMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(), Date: time.Now().UTC().Format("2006-01-02 15:04")}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var sys unix.Sysinfo_t
	if unix.Sysinfo(&sys) == nil {
		m.Memory = sys.Totalram * uint64(sys.Unit)
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _ = strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	}
	return m
}

// Busy reports whether other programs were running when the run began, so that its figures are those of a shared machine.
func (m Machine) Busy() bool { return m.Load > float64(m.Cores)/4 }

func (m Machine) String() string {
	busy := ""
	if m.Busy() {
		busy = ", so measured under other load"
	}
	return fmt.Sprintf("%s, %d cores, %.0f GiB; Linux %s, %s; trl %s, tier %s; %s UTC, load before %.2f%s",
		m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.Kernel, m.Go, m.Commit, m.Tier, m.Date, m.Load, busy)
}
