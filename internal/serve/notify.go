package serve

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// notifyTimeout bounds the wait for a supervisor that does not read its full queue (ten datagrams).
const notifyTimeout = 100 * time.Millisecond

// notify tells systemd our state (Type=notify, sd_notify(3)), with a datagram to $NOTIFY_SOCKET. It ignores errors: nothing depends on it.
func notify(state string) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	c, err := net.Dial("unixgram", socket) // also an abstract socket, @name
	if err != nil {
		return
	}
	defer c.Close()
	if state == reloading { // by the time, systemd can tell our READY from an earlier one
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // every Linux has this clock
		state += fmt.Sprintf("\nMONOTONIC_USEC=%d", now.Nano()/1000)
	}
	_ = c.SetWriteDeadline(time.Now().Add(notifyTimeout))
	_, _ = c.Write([]byte(state))
}

// The states of sd_notify(3) that we use.
const (
	ready         = "READY=1"
	reloading     = "RELOADING=1"
	stopping      = "STOPPING=1"
	watchdogAlive = "WATCHDOG=1"
)

// watchdogInterval is how often we must report that we are alive: twice as often as WatchdogSec= requires. 0: never.
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
