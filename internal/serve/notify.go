package serve

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// notifyTimeout is how long who started us may leave a full queue unread (ten datagrams): we have more to do than to tell.
const notifyTimeout = 100 * time.Millisecond

// A notice goes to who started us, where that is systemd (Type=notify, sd_notify(3)): a datagram to $NOTIFY_SOCKET. Who cannot be
// reached, or does not read, is not there; nothing else follows from it.
func notify(state string) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	c, err := net.Dial("unixgram", socket) // also an abstract one, @name
	if err != nil {
		return
	}
	defer c.Close()
	if state == reloading { // with the time of it, systemd can tell its own READY from an earlier one
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // it is there
		state += fmt.Sprintf("\nMONOTONIC_USEC=%d", now.Nano()/1000)
	}
	_ = c.SetWriteDeadline(time.Now().Add(notifyTimeout))
	_, _ = c.Write([]byte(state))
}

// The states of sd_notify(3) that we have.
const (
	ready         = "READY=1"
	reloading     = "RELOADING=1"
	stopping      = "STOPPING=1"
	watchdogAlive = "WATCHDOG=1"
)

// watchdogInterval is how often we must say that we are alive, twice as often as wanted (WatchdogSec=); 0: never.
func watchdogInterval() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 {
		return 0
	}
	return time.Duration(usec) * time.Microsecond / 2
}
