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

// SomebodyListens says whether a process listens on this port of 127.0.0.1. It does not count a connection whose own end got the port by chance.
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
