package procfs

import (
	"os"
	"strings"
)

// WaitsForPipe tells whether a thread of the process waits for a pipe's lock, by the kernel function that it sleeps in
// (/proc/PID/task/TID/wchan). If the function is unknown, a thread in an uninterruptible sleep counts.
func WaitsForPipe(pid int) bool {
	tasks := Path(pid, "/task")
	dir, err := os.ReadDir(tasks)
	if err != nil {
		return false
	}
	for _, task := range dir {
		path := tasks + "/" + task.Name()
		stat, _ := os.ReadFile(path + "/stat")
		if p, ok := ParseStat(stat); !ok || p.State != 'D' {
			continue
		}
		text, _ := os.ReadFile(path + "/wchan")
		if in := string(text); in == "" || in == "0" || strings.Contains(in, "pipe") || strings.Contains(in, "splice") || strings.Contains(in, "fifo") {
			return true
		}
	}
	return false
}
