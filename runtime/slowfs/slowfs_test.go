package slowfs

import (
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
)

// impatient makes Ask wait for d only.
func impatient(t *testing.T, d time.Duration) {
	was := answerTimeout
	answerTimeout = d
	t.Cleanup(func() { answerTimeout = was })
}

func asked(who string) int {
	questions.mu.Lock()
	defer questions.mu.Unlock()
	return questions.of[who]
}

// Ask waits no longer than answerTimeout, and few threads are blocked.
func TestAskIsBounded(t *testing.T) {
	impatient(t, 20*time.Millisecond)
	dir, answer := testkit.DeadMount(t)
	defer answer()
	want := []error{unix.ETIMEDOUT, unix.ETIMEDOUT, unix.EAGAIN, unix.EAGAIN}
	for i, want := range want {
		err := Enterable("eve", dir)
		e, ok := errors.AsType[*fs.PathError](err)
		if !ok || e.Op != "chdir" || e.Path != dir || e.Err != want || !Unanswered(err) {
			t.Errorf("question %d: %#v", i, err)
		}
	}
	if n := asked("eve"); n != maxQuestions {
		t.Errorf("%d questions are under way", n)
	}
	impatient(t, time.Minute)
	if err := Enterable("bob", t.TempDir()); err != nil {
		t.Errorf("another session: %v", err)
	}
	if err := Enterable("bob", "/dev/shm"); err != nil {
		t.Errorf("another session, on no disk: %v", err)
	}
	if err := Enterable("bob", t.TempDir()+"/none"); !errors.Is(err, fs.ErrNotExist) || Unanswered(err) {
		t.Error(err)
	}
	answer()
	testkit.Eventually(t, "its threads are given back", func() bool { return asked("eve") == 0 })
}

// All askers together can have maxQuestionsOfAll waiting questions. One more waits for a place, which it does not get here.
func TestQuestionsOfAllAreBounded(t *testing.T) {
	impatient(t, time.Minute)
	let, asked := make(chan struct{}), make(chan error, maxQuestionsOfAll)
	for i := range maxQuestionsOfAll {
		go func() {
			_, err := Ask(Question{Who: fmt.Sprint(i / maxQuestions)}, func() (struct{}, error) { <-let; return struct{}{}, nil })
			asked <- err
		}()
	}
	all := func() int {
		questions.mu.Lock()
		defer questions.mu.Unlock()
		return questions.all
	}
	testkit.Eventually(t, "they are under way", func() bool { return all() == maxQuestionsOfAll })
	q := Question{Who: "one more"}
	answerTimeout = 20 * time.Millisecond // the other questions have their timers already
	if _, err := Ask(q, func() (struct{}, error) { return struct{}{}, nil }); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("one more: %v", err)
	}
	close(let)
	for range maxQuestionsOfAll {
		if err := <-asked; err != nil {
			t.Error(err)
		}
	}
	answerTimeout = time.Minute
	if _, err := Ask(q, func() (struct{}, error) { return struct{}{}, nil }); err != nil {
		t.Errorf("once there is room: %v", err)
	}
}

type closeOnce struct{ closed *atomic.Int32 }

func (c closeOnce) Close() error { c.closed.Add(1); return nil }

// Ask closes an answer that comes too late. An answer that it returned belongs to the caller.
func TestAskClosesWhatComesLate(t *testing.T) {
	var closed atomic.Int32
	impatient(t, time.Millisecond)
	let := make(chan struct{})
	if _, err := Ask(Question{Who: "eve", Op: "open", Path: "x"}, func() (closeOnce, error) { <-let; return closeOnce{&closed}, nil }); !errors.Is(err, unix.ETIMEDOUT) {
		t.Error(err)
	}
	close(let)
	testkit.Eventually(t, "it is closed", func() bool { return closed.Load() == 1 })
	impatient(t, time.Minute)
	if _, err := Ask(Question{Who: "eve"}, func() (closeOnce, error) { return closeOnce{&closed}, nil }); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "no question is under way", func() bool { return asked("eve") == 0 })
	if n := closed.Load(); n != 1 {
		t.Errorf("%d are closed", n)
	}
}
