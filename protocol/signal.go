package protocol

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Real-time signals as the kernel numbers them for programs: the C library keeps 32 and 33.
const (
	rtMin = 34
	rtMax = 64
)

// ParseSignal reads a signal's name in any case, with or without SIG ("TERM", "sigint", "RTMIN+6", "RTMAX-1").
func ParseSignal(name string) (syscall.Signal, *Error) {
	upper := strings.TrimPrefix(strings.ToUpper(name), "SIG")
	for _, rt := range []struct {
		prefix, sign string
		base         int
	}{{"RTMIN", "+", rtMin}, {"RTMAX", "-", rtMax}} {
		rest, ok := strings.CutPrefix(upper, rt.prefix)
		if !ok {
			continue
		}
		if rest == "" {
			return syscall.Signal(rt.base), nil
		}
		digits, ok := strings.CutPrefix(rest, rt.sign)
		n, err := strconv.ParseUint(digits, 10, 8)
		if !ok || err != nil || n > rtMax-rtMin {
			break
		}
		if rt.sign == "-" {
			return syscall.Signal(rt.base - int(n)), nil
		}
		return syscall.Signal(rt.base + int(n)), nil
	}
	if alias, ok := aliases[upper]; ok {
		upper = alias
	}
	if s := unix.SignalNum("SIG" + upper); s != 0 {
		return s, nil
	}
	return 0, InvalidParam("signal", "unknown signal %q", printable(name))
}

// aliases are names that x/sys does not know under this spelling.
var aliases = map[string]string{"IOT": "ABRT", "CLD": "CHLD", "POLL": "IO"}

// SignalNames are the names of the signals below the real-time ones.
func SignalNames() (names []string) {
	for s := syscall.Signal(1); s < rtMin; s++ {
		if name := unix.SignalName(s); name != "" {
			names = append(names, strings.TrimPrefix(name, "SIG"))
		}
	}
	return names
}

// SignalName returns the name of s without SIG ("TERM", "RTMIN+6"), or its number if it has no name.
func SignalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	if s == rtMin {
		return "RTMIN"
	}
	if s > rtMin && s <= rtMax {
		return "RTMIN+" + strconv.Itoa(int(s)-rtMin)
	}
	return strconv.Itoa(int(s))
}

// SignalExitCode is the exit code that shells report for a process that s ended.
func SignalExitCode(s syscall.Signal) int { return 128 + int(s) }

// ExitCodeSignal is the inverse of SignalExitCode; 0 means that the code does not stand for a signal.
func ExitCodeSignal(code int) syscall.Signal {
	const last = 31 // exit codes of real-time signals cannot be told apart from ordinary ones
	if code > 128 && code <= 128+last {
		return syscall.Signal(code - 128)
	}
	return 0
}
