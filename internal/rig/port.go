package rig

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// actListener turns the test binary into a program that listens on a port, if a command of ListenCommand runs it: "listen" listens; "http"
// also answers; "deaf" ignores TERM; "parent" starts a deaf one and waits for it.
func actListener() {
	what := os.Getenv("TRL_ACCEPTANCE_CHILD")
	switch what {
	case "":
		return
	case "parent":
		worker := exec.Command(os.Args[0])
		worker.Env = append(os.Environ(), "TRL_ACCEPTANCE_CHILD=deaf")
		worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
		if err := worker.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	case "deaf":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	port := os.Getenv("TRL_ACCEPTANCE_PORT")
	if port == "" {
		port = "0"
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("listening on %d.\n", l.Addr().(*net.TCPAddr).Port)
	if what == "http" {
		err = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "fine") }))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}
}

// ListenCommand is a command that runs this binary as what; see actListener. port 0 takes a free one.
func ListenCommand(what string, port int) string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	p := ""
	if port > 0 {
		p = "TRL_ACCEPTANCE_PORT=" + strconv.Itoa(port) + " "
	}
	return p + "TRL_ACCEPTANCE_CHILD=" + what + " " + self
}

// PrintedPort returns the port that a listener printed; 0 if it has not printed it yet.
func PrintedPort(output string) (port int) {
	_, _ = fmt.Sscanf(output, "listening on %d.", &port)
	return port
}

// SomebodyListens says whether a process listens on this port of 127.0.0.1. Unlike PortIsFree it does not count a connection whose own end got the port by chance.
func SomebodyListens(t testing.TB, port int) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) { // sl local_address rem_address st …; a listener's st is 0A
		f := strings.Fields(line)
		if len(f) > 3 && f[1] == fmt.Sprintf("0100007F:%04X", port) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// PortIsFree says whether this port can be listened on.
func PortIsFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// lastPort is the number of ports that Ports has returned.
var lastPort atomic.Int64

// Ports returns ports on loopback that are free and stay so until somebody listens there: no other test binary gets them, and on usual machines no
// connection, and no program that asks for any port.
func Ports(t testing.TB, n int) (ports []int) {
	t.Helper()
	const first, each, slots = 12000, 1000, 20 // below 32768, where Linux begins to choose ports itself
	for tries := 0; len(ports) < n; tries++ {
		if tries == each {
			t.Fatalf("no %d free ports", n)
		}
		port := first + each*(slot()%slots) + int(lastPort.Add(1)%each)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			ports = append(ports, port)
		}
	}
	return ports
}
