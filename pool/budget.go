package pool

import "sync"

// maxKeptOutput is how many bytes of output are kept for exec.run's answers, of one principal's commands, until a command has ended and its
// answers are written; all have twice as many. The first 64 KiB of each half of a stream's text are not counted. Where it is used up an answer
// holds less of its command's output, and says so, as with a smaller max_output_bytes.
const maxKeptOutput = 512 << 20

// tally is a number of bytes of each principal, and of all.
type tally struct {
	mu  sync.Mutex
	of  map[string]int64
	sum int64
}

func (t *tally) add(who string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(who, n)
}

func (t *tally) addLocked(who string, n int64) {
	if t.of == nil {
		t.of = map[string]int64{}
	}
	t.sum += n
	if t.of[who] += n; t.of[who] == 0 {
		delete(t.of, who)
	}
}

// budget is a number of bytes that principals share.
type budget struct {
	each, all int64 // set once
	tally
}

// take reports whether there were n bytes left for who, who has them then.
func (b *budget) take(who string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[who]+n > b.each || b.sum+n > b.all {
		return false
	}
	b.addLocked(who, n)
	return true
}

func (b *budget) give(who string, n int64) { b.add(who, -n) }
