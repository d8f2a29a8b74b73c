package pool

import "sync"

// maxKeptOutput is how many bytes of output are kept for exec.run's answers, of one principal's commands, until a command has ended and its
// answers are written; all have twice as many. The first 64 KiB of each half of a stream's text are not counted. Where it is used up an answer
// holds less of its command's output, and says so, as with a smaller max_output_bytes.
const maxKeptOutput = 512 << 20

// byteTally is a number of bytes of each principal, and of all.
type byteTally struct {
	mu          sync.Mutex
	byPrincipal map[string]int64
	total       int64
}

func (t *byteTally) add(who string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(who, n)
}

func (t *byteTally) addLocked(who string, n int64) {
	if t.byPrincipal == nil {
		t.byPrincipal = map[string]int64{}
	}
	t.total += n
	if t.byPrincipal[who] += n; t.byPrincipal[who] == 0 {
		delete(t.byPrincipal, who)
	}
}

// budget is a number of bytes that principals share.
type budget struct {
	principalLimit, totalLimit int64 // set once
	byteTally
}

// reserve reports whether there were n bytes left for who, who has them then.
func (b *budget) reserve(who string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byPrincipal[who]+n > b.principalLimit || b.total+n > b.totalLimit {
		return false
	}
	b.addLocked(who, n)
	return true
}

func (b *budget) release(who string, n int64) { b.add(who, -n) }
