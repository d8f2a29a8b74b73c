package shell

import (
	"slices"
	"syscall"
	"testing"

	"trl/internal/testkit"
	"trl/runtime/journal"
)

func TestKillReachesAProcessThatLeftItsCell(t *testing.T) {
	h := cgroupHost(t)
	s := openSession(t, h, "/bin/bash")
	for name, to := range map[string]string{"below": "$cg/x", "above": "${cg%/*}"} {
		t.Run(name, func(t *testing.T) {
			m := testkit.Marker()
			cg := ownCgroup(t)
			p, err := s.StartProcess(ProcessSpec{Text: "cg=" + cg + "; mkdir $cg/x; echo $$ > " + to + "/cgroup.procs; trap '' TERM; exec sleep " + m, Journal: journal.New(1 << 20)})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			testkit.Eventually(t, "it runs", func() bool { return len(testkit.Alive(m)) == 1 })
			killed := make(chan error, 1)
			go func() { killed <- p.Kill(t.Context(), 0) }()
			testkit.Eventually(t, "kill returns", func() bool { return len(killed) == 1 })
			if err := <-killed; err != nil || len(testkit.Alive(m)) != 0 {
				t.Errorf("%v; alive: %v", err, testkit.Alive(m))
			}
		})
	}
}

// A job belongs to the command that started it. The abort of a later command does not touch it.
func TestJobBelowItsCellIsToldAndLeftAlone(t *testing.T) {
	h := cgroupHost(t)
	s := openSession(t, h, "/bin/bash")
	m := testkit.Marker()
	cg := ownCgroup(t)
	o := s.run("cg=" + cg + "; mkdir $cg/x; sh -c \"echo \\$\\$ > $cg/x/cgroup.procs; exec sleep " + m + "\" >/dev/null 2>&1 & while ! grep -q . $cg/x/cgroup.procs; do sleep 0.01; done")
	testkit.Eventually(t, "it runs", func() bool { return len(testkit.Alive(m)) == 1 })
	if !slices.Equal(o.Background, testkit.Alive(m)) || len(o.Background) != 1 {
		t.Errorf("told of %v, there is %v", o.Background, testkit.Alive(m))
	}
	if pids := s.Background(); !slices.Equal(pids, testkit.Alive(m)) {
		t.Errorf("the session tells of %v", pids)
	}
	stubborn := testkit.Marker()
	late := NewCommand("sh -c \"trap '' INT TERM; sleep " + stubborn + "; :\"")
	done := s.start(late)
	testkit.Eventually(t, "the later command runs", func() bool { return len(testkit.Alive(stubborn)) == 2 })
	late.Cancel(syscall.SIGINT, 0)
	<-done
	if len(testkit.Alive(m)) != 1 {
		t.Error("the end of a later command has ended it")
	}
}

func TestCellsTakeNumbersThatTheSessionLeftFree(t *testing.T) {
	h := cgroupHost(t)
	s := openSession(t, h, "/bin/bash")
	cg := ownCgroup(t)
	m := testkit.Marker()
	if o := s.run("cg=" + cg + "; mkdir ${cg%/*}/c{2,3,4,5}; sleep " + m + " >/dev/null 2>&1 &"); o.Code != 0 || len(o.Background) != 1 {
		t.Fatalf("%+v", o)
	}
	if o := s.run("echo next"); o.out != "next\n" || len(o.Background) != 0 {
		t.Errorf("the next command: %+v", o)
	}
	stubborn := testkit.Marker()
	late := NewCommand("sh -c \"trap '' INT TERM; sleep " + stubborn + "; :\"")
	done := s.start(late)
	testkit.Eventually(t, "the later command runs", func() bool { return len(testkit.Alive(stubborn)) == 2 })
	late.Cancel(syscall.SIGINT, 0)
	<-done
	if len(testkit.Alive(m)) != 1 {
		t.Error("the end of a later command has ended the job")
	}
}
