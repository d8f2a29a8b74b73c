package shell

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/confine"
	"trl/runtime/descriptor"
)

// A file system whose server is gone (NFS, FUSE) may never answer, and a session may have mounted it itself. Code that looks at
// a path which a client or a session chose therefore asks on a goroutine of its own, and waits for the answer for a bounded
// time. A question without an answer keeps a thread of this process until the file system answers or is unmounted.

// fileSystemTimeout bounds the wait for an answer. A disk that has to spin up takes some seconds.
const fileSystemTimeout = 5 * time.Second

// answerTimeout is fileSystemTimeout but in tests.
var answerTimeout = fileSystemTimeout

// maxQuestions bounds the questions under way of one asker, which is a session or a principal. maxQuestionsOfAll bounds those of all,
// since each takes a thread and Go ends a program with 10,000 threads.
const (
	maxQuestions      = 2
	maxQuestionsOfAll = 512
)

// A Question says who asks the file system about which path.
type Question struct {
	Who  string // the session or the principal that the question counts for
	Op   string // Op of the PathError where there is no answer
	Path string // Path of that error
}

// questions counts what this process asks.
var questions = struct {
	mu  sync.Mutex
	of  map[string]int // guarded by mu; by Question.Who
	all int            // guarded by mu
}{of: map[string]int{}}

// beginQuestion counts one more question. It is false where there are too many.
func beginQuestion(who string) bool {
	q := &questions
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of[who] >= maxQuestions || q.all >= maxQuestionsOfAll {
		return false
	}
	q.of[who]++
	q.all++
	return true
}

func endQuestion(who string) {
	q := &questions
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of[who]--; q.of[who] == 0 {
		delete(q.of, who)
	}
	q.all--
}

// Ask returns what f returns. f asks the file system about the question's path, and shares nothing with the caller, who may
// not wait for it: without an answer within answerTimeout Ask returns ETIMEDOUT. It returns EAGAIN where the asker has too many
// questions under way for that time. An answer that comes later is closed, if it is an io.Closer.
func Ask[T any](q Question, f func() (T, error)) (answer T, err error) {
	late := time.NewTimer(answerTimeout)
	defer late.Stop()
	for pause := time.Millisecond; !beginQuestion(q.Who); pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-late.C:
			return answer, &fs.PathError{Op: q.Op, Path: q.Path, Err: unix.EAGAIN}
		}
	}
	type result struct {
		answer T
		err    error
	}
	done, left := make(chan result), make(chan struct{})
	go func() { // ends when the file system answers, which nobody may wait for
		answer, err := f()
		endQuestion(q.Who)
		select {
		case done <- result{answer, err}:
		case <-left:
			if c, ok := any(answer).(io.Closer); ok && err == nil {
				c.Close()
			}
		}
	}()
	select {
	case r := <-done:
		return r.answer, r.err
	case <-late.C:
		close(left)
		return answer, &fs.PathError{Op: q.Op, Path: q.Path, Err: unix.ETIMEDOUT}
	}
}

// Unanswered says that a file system did not answer, or that Ask could not ask it.
func Unanswered(err error) bool { return errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, unix.EAGAIN) }

// AskEnterable says whether this process may enter a directory. A directory that the kernel has in its caches, on a file system
// that always answers, costs no goroutine.
func AskEnterable(who, dir string) error {
	if fd := descriptor.OpenCached(dir); fd >= 0 {
		unix.Close(fd)
		return nil
	}
	_, err := Ask(Question{Who: who, Op: "chdir", Path: dir}, func() (struct{}, error) { return struct{}{}, confine.Enterable(dir) })
	return err
}
