// Package slowfs asks file systems that may never answer.
//
// A file system whose server is gone (NFS, FUSE) may never answer, and a session may have mounted it itself. Code that looks at a path
// which a client or a session chose therefore asks on a goroutine of its own, and waits for the answer for a bounded time. A question
// without an answer keeps a thread of this process until the file system answers or is unmounted.
package slowfs

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

// fileSystemTimeout bounds the wait for an answer. A disk that has to spin up takes some seconds.
const fileSystemTimeout = 5 * time.Second

// answerTimeout is fileSystemTimeout. Tests shorten it.
var answerTimeout = fileSystemTimeout

// maxQuestions is how many questions of one asker (a session or a principal) may wait for an answer. maxQuestionsOfAll is the limit
// for all askers: each question takes a thread, and Go ends a program with 10,000 threads.
const (
	maxQuestions      = 2
	maxQuestionsOfAll = 512
)

// A Question says who asks the file system about which path.
type Question struct {
	Who  string // the session or the principal that the question counts for
	Op   string // Op of the PathError if no answer comes
	Path string // Path of that error
}

// OpLookUp is the Op of a question for a program.
const OpLookUp = "look up"

// questions counts the questions of this process that wait for an answer.
var questions = struct {
	mu  sync.Mutex
	of  map[string]int // guarded by mu; by Question.Who
	all int            // guarded by mu
}{of: map[string]int{}}

// beginQuestion counts one more question. It returns false if there are too many.
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

// Ask calls f, which asks the file system about the question's path, and returns f's result. If f has not returned after
// answerTimeout, Ask returns ETIMEDOUT, so f must share nothing with the caller. If the asker has too many waiting questions for
// that time, Ask returns EAGAIN. An answer that comes too late is closed if it is an io.Closer.
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
	go func() { // ends when the file system answers; nobody waits for that
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

// Unanswered tells whether err means that a file system did not answer or that Ask could not ask it.
func Unanswered(err error) bool { return errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, unix.EAGAIN) }

// Enterable returns an error if this process may not enter the directory. It needs no goroutine for a directory that is in the
// kernel's caches and on a file system that always answers.
func Enterable(who, dir string) error {
	if fd := descriptor.OpenCached(dir); fd >= 0 {
		unix.Close(fd)
		return nil
	}
	_, err := Ask(Question{Who: who, Op: "chdir", Path: dir}, func() (struct{}, error) { return struct{}{}, confine.Enterable(dir) })
	return err
}
