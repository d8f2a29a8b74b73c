package edge

import (
	native "encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"

	"golang.org/x/sys/unix"
)

// A fuseFS is a file system of this test's own, which answers until it is told to stop. It has one directory, with nothing in it.
type fuseFS struct {
	dir  string
	dead atomic.Bool // requests are read and get no answer
	end  func()      // unmounts it, once; who waits for it gets an error
}

// mountFUSE mounts one, which is gone with the test.
func mountFUSE(t *testing.T) *fuseFS {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no FUSE: ", err)
	}
	fs := &fuseFS{dir: t.TempDir()}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("trl-test", fs.dir, "fuse", 0, options); err != nil {
		unix.Close(fd)
		t.Skip("no FUSE may be mounted: ", err)
	}
	served := make(chan struct{})
	go func() { defer close(served); fs.serve(fd) }() // ends with the mount; waited for below
	fs.end = sync.OnceFunc(func() {
		_ = unix.Unmount(fs.dir, unix.MNT_FORCE) // ends the connection
		if err := unix.Unmount(fs.dir, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
			t.Error(err)
		}
		<-served
		unix.Close(fd)
	})
	t.Cleanup(fs.end)
	return fs
}

// The numbers are those of <linux/fuse.h>, version 7.31.
const (
	fuseGetattr = 3
	fuseStatfs  = 17
	fuseInit    = 26
	fuseOpendir = 27
	fuseForget  = 2
	fuseForgets = 42
)

func (fs *fuseFS) serve(fd int) {
	request := make([]byte, 1<<17)
	for {
		n, err := unix.Read(fd, request)
		switch {
		case err == unix.EINTR || err == unix.ENOENT: // the request was interrupted
			continue
		case err != nil || n < 40:
			return
		}
		op, id := native.NativeEndian.Uint32(request[4:]), native.NativeEndian.Uint64(request[8:])
		var body []byte
		fault := int32(0)
		switch {
		case op == fuseForget || op == fuseForgets || fs.dead.Load():
			continue
		case op == fuseInit:
			body = make([]byte, 64)
			for at, v := range []uint32{7, 31, 0, 0, 12 | 9<<16, 1 << 16, 1} {
				native.NativeEndian.PutUint32(body[4*at:], v)
			}
		case op == fuseGetattr:
			body = make([]byte, 16+88)                                // valid for no time
			native.NativeEndian.PutUint64(body[16:], 1)               // ino
			native.NativeEndian.PutUint32(body[16+60:], 0o40777)      // mode
			native.NativeEndian.PutUint32(body[16+64:], 2)            // nlink
			native.NativeEndian.PutUint32(body[16+80:], uint32(4096)) // blksize
		case op == fuseStatfs:
			body = make([]byte, 80)
		case op == fuseOpendir:
			body = make([]byte, 16)
		case op == 1: // LOOKUP
			fault = -int32(unix.ENOENT)
		default:
			fault = -int32(unix.ENOSYS)
		}
		answer := native.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
		answer = native.NativeEndian.AppendUint32(answer, uint32(fault))
		answer = native.NativeEndian.AppendUint64(answer, id)
		_, _ = unix.Write(fd, append(answer, body...))
	}
}

// notAnswering is a bound on what the documentation promises within 5 s, for a busy machine.
const notAnswering = 30 * time.Second

// A directory whose file system has stopped answering costs the request that is about it, and nobody else.
func TestDirectoriesThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	g := rig.StartTuned(t, func(c *exec.Cmd) { c.WaitDelay = 3 * testkit.Patience }) // see the end
	fs := mountFUSE(t)
	defer time.AfterFunc(3*testkit.Patience, fs.end).Stop() // a gateway that hangs shall not hang the test
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	inside := c.Session(object{"shell": "/bin/bash"})
	rig.Expect(t, c.Run(inside, "cd "+fs.dir+" && pwd"), 0, fs.dir+"\n", "")
	fs.dead.Store(true)

	// A cancel, and a session's end, do not wait for the answer.
	run := object{"session_id": s, "command": "echo no", "working_dir": fs.dir}
	first := c.Begin("exec.run", run)
	testkit.Eventually(t, "it has the turn", func() bool { return c.Info(s).Has("current_exec") })
	if r := c.Call("exec.cancel", object{"session_id": s}); !r.Yes("cancelled") {
		t.Error(r)
	}
	if r := c.Answer(first).Data; !r.Yes("cancelled") || r.Stdout() != "" {
		t.Error(r)
	}
	rig.Expect(t, c.Run(s, "echo yes"), 0, "yes\n", "")
	other := c.Session(object{"shell": "/bin/sh"})
	c.Begin("exec.run", rig.With(run, object{"session_id": other}))
	testkit.Eventually(t, "it has the turn", func() bool { return c.Info(other).Has("current_exec") })
	begin := time.Now()
	c.Call("session.destroy", object{"session_id": other, "force": true})
	rig.Within(t, "session.destroy", begin, notAnswering)

	// Each is refused. They are asked at the same time, and meanwhile others work.
	third := c.Session()
	asked := []struct {
		method, code string
		params       object
	}{
		{"exec.run", "WORKING_DIR_NOT_FOUND", run},
		{"session.create", "WORKING_DIR_NOT_FOUND", object{"working_dir": fs.dir}},
		{"session.create", "SHELL_NOT_FOUND", object{"shell": fs.dir + "/x/bash"}},
		{"process.start", "WORKING_DIR_NOT_FOUND", object{"session_id": inside, "command": "true"}},
		{"term.open", "WORKING_DIR_NOT_FOUND", object{"session_id": inside, "cols": 80, "rows": 24}},
		{"term.open", "SHELL_FAILED", object{"session_id": third, "cols": 80, "rows": 24, "command": fs.dir + "/x/bash"}},
	}
	clients, ids := make([]*rig.Client, len(asked)), make([]int, len(asked))
	for i, a := range asked {
		clients[i] = g.Dial(t)
		ids[i] = clients[i].Begin(a.method, a.params)
	}
	rig.Expect(t, c.Run(third, "echo fine"), 0, "fine\n", "")
	for i, a := range asked {
		if f := clients[i].Answer(ids[i]); f.Code() != a.code {
			t.Errorf("%s %v: %v, not %s", a.method, a.params, f, a.code)
		}
	}
	// Sessions go on, also the one whose shell is there.
	rig.Expect(t, c.Run(s, "echo yes"), 0, "yes\n", "")
	rig.Expect(t, c.Run(inside, "cd / && pwd"), 0, "/\n", "")
	if f := c.Try("process.start", object{"session_id": inside, "command": "true"}); f.Code() != "" {
		t.Errorf("process.start in a shell that has left: %v", f.Error)
	}
	// The gateway can be replaced, and all of it stopped, while its threads wait for the file system.
	c.Begin("exec.run", run)
	g.KillGateway(t)
	c = g.Redial(t)
	rig.Expect(t, c.Run(s, "echo still"), 0, "still\n", "")
	c.Begin("exec.run", run)
	testkit.Eventually(t, "it has the turn", func() bool { return c.Info(s).Has("current_exec") })
	begin = time.Now()
	_ = g.Cmd.Process.Signal(unix.SIGTERM)
	testkit.Eventually(t, "trl has ended", func() bool { _, err := os.Stat(fmt.Sprint("/proc/", g.Cmd.Process.Pid)); return err != nil })
	rig.Within(t, "the stop", begin, notAnswering)
	fs.end() // the gateways have its log open
}
