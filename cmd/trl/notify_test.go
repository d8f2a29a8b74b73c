package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/client"
	"trl/internal/testkit"
)

// TestAsSystemdStartsIt: socket activation, and the notifications of sd_notify(3), through an upgrade, which execs the keeper.
func TestAsSystemdStartsIt(t *testing.T) {
	testkit.StartsProcesses(t)
	for _, flags := range [][]string{nil, {"--single-process"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) { asSystemdStartsIt(t, flags) })
	}
}

func asSystemdStartsIt(t *testing.T, flags []string) {
	dir, err := os.MkdirTemp("", "trl") // short: it becomes part of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	states := make(chan string, 1000)
	read := make(chan struct{})
	defer func() { told.Close(); <-read }()
	go func() { // reads all the time, as systemd does: trl waits only 0.1 s for a place in the socket; ends when it is closed
		defer close(read)
		for b := make([]byte, 1000); ; {
			n, err := told.Read(b)
			if err != nil {
				return
			}
			state, _, _ := strings.Cut(string(b[:n]), "\n")
			states <- state
		}
	}()
	hears := func(want string) {
		t.Helper()
		for timeout := time.After(patience); ; {
			select {
			case state := <-states:
				if state == want {
					return
				}
			case <-timeout:
				t.Fatal("did not come: " + want)
			}
		}
	}
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	local, err := net.Listen("unix", filepath.Join(dir, "local"))
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	webFile, err := web.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer webFile.Close()
	localFile, err := local.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer localFile.Close()

	admin := filepath.Join(dir, "admin")
	argv := append([]string{"-c", `LISTEN_PID=$$ exec trl "$@"`, "sh", "serve", "--auth", "none", "--log-level", "warn",
		"--state-dir", filepath.Join(dir, "state"), "--admin-listen", admin}, flags...)
	cmd := exec.Command("sh", argv...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+told.LocalAddr().String(), "WATCHDOG_USEC=1000000", "LISTEN_FDS=2", "LISTEN_FDNAMES=http:unknown")
	cmd.ExtraFiles = []*os.File{webFile, localFile}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &started{cmd: cmd}
	t.Cleanup(func() { g.stop(t) })
	hears("READY=1")
	hears("WATCHDOG=1")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, o := range []client.Options{{URL: "http://" + web.Addr().String()}, {Unix: local.Addr().String()}} {
		c, err := client.Connect(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Exec(ctx, "env; ls -l /proc/self/fd | grep -c socket:", nil)
		c.Close()
		if err != nil || strings.Contains(r.Stdout, "LISTEN_") || strings.Contains(r.Stdout, "NOTIFY_") || !strings.HasSuffix(r.Stdout, "\n0\n") {
			t.Errorf("%+v: %v, %s", o, err, r.Stdout)
		}
	}
	over := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", admin)
	}}}
	for url, want := range map[string]int{
		"http://admin/debug/pprof/goroutine": 200, "http://admin/metrics": 200, "http://admin/v1/schema": 404,
		"http://" + web.Addr().String() + "/debug/pprof/goroutine": 404,
	} {
		c := http.DefaultClient
		if strings.HasPrefix(url, "http://admin/") {
			c = over
		}
		resp, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d", url, resp.StatusCode)
		}
	}
	if info, err := os.Stat(admin); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if flags == nil {
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		hears("RELOADING=1")
		hears("READY=1")
		hears("WATCHDOG=1")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	hears("STOPPING=1")
	if err := cmd.Wait(); err != nil {
		t.Errorf("end: %v", err)
	}
	for path, stays := range map[string]bool{admin: false, local.Addr().String(): true} { // sockets from systemd are not ours to remove
		if _, err := os.Stat(path); (err == nil) != stays {
			t.Errorf("%s afterwards: %v", path, err)
		}
	}
}

// TestSupervisorDoesNotRead: a supervisor that leaves its socket full delays neither the start nor the end.
func TestSupervisorDoesNotRead(t *testing.T) {
	testkit.StartsProcesses(t)
	socket := filepath.Join(t.TempDir(), "notify")
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	filler, err := net.Dial("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for err == nil {
		if err = filler.SetWriteDeadline(time.Now().Add(time.Second)); err == nil {
			_, err = filler.Write([]byte("full"))
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "50000")
	for _, flags := range [][]string{nil, {"--single-process"}} {
		g := startGateway(t, flags...)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := client.Connect(ctx, client.Options{URL: "http://" + g.addr})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := c.Exec(ctx, "echo here", nil); err != nil || r.Stdout != "here\n" {
			t.Errorf("%+v, %v", r, err)
		}
		c.Close()
		g.stop(t)
	}
}
