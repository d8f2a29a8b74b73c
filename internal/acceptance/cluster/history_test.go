package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/protocol"
)

// history is what clients of a cluster were told, and what was done to it. Its checks find what may never be, whatever fails.
type history struct {
	dir string // has a file with the commands that each client's sessions ran

	mu       sync.Mutex
	sessions map[string]*pastSession // guarded by mu
	keys     map[string]bool         // guarded by mu; by request key: its command was said to have run
	ended    map[string]bool         // guarded by mu; epochs of nodes that were killed
	counts   map[string]int          // guarded by mu; how often what happened
	wrong    []string                // guarded by mu

	longest   time.Duration // guarded by mu; the step that took longest
	longestOf string        // guarded by mu
}

// pastSession is a session from the moment when its client was told of it, to that when it began to end.
type pastSession struct {
	id, principal, name string
	from, until         time.Time       // until is zero while it lives
	told                time.Time       // when a client was told that it is over; zero: not yet
	epochs              map[string]bool // of the nodes that may have it: more than one during a move, and after one whose end nobody knows
	moves               int             // moves that have been sent and not been answered
	moved               time.Time       // the answer to the last move
	numbers             []numbered      // commands that counted in its shell
	last                [2]string       // the id of a command that has ended, and its output
}

// numbered is a command that counted in the shell: the next number, and when it was sent and answered.
type numbered struct {
	n              int
	sent, answered time.Time
}

func newHistory(t *testing.T) *history {
	return &history{dir: t.TempDir(), sessions: map[string]*pastSession{}, keys: map[string]bool{}, ended: map[string]bool{}, counts: map[string]int{}}
}

func (h *history) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
}

func (h *history) count(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what]++
}

// created notes a session that was said to be new.
func (h *history) created(id, epoch, principal, name string) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[id] != nil {
		h.wrong = append(h.wrong, fmt.Sprintf("%s was made twice", id))
		return
	}
	h.sessions[id] = &pastSession{id: id, principal: principal, name: name, epochs: map[string]bool{epoch: true}, from: now}
	if h.ended[epoch] { // its node was killed before the client, who may have waited for a second answer, noted it
		h.sessions[id].until = now
		h.counts["created on a node that was killed"]++
	}
	h.counts["created"]++
}

// sameSession notes that two gateways have answered one request to make a session. They may name two sessions only if one of their nodes has ended.
func (h *history) sameSession(key string, a, b *protocol.Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.SessionID != b.SessionID && !h.ended[a.Epoch] && !h.ended[b.Epoch] {
		h.wrong = append(h.wrong, fmt.Sprintf("the request %s has made %s and %s", key, a.SessionID, b.SessionID))
	}
}

// ends notes that a session may end from now on.
func (h *history) ends(id string) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[id]; s != nil && s.until.IsZero() {
		s.until = now
	}
}

// nodeEnds notes that all sessions that may be on a node may end from now on.
func (h *history) nodeEnds(epoch string) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended[epoch] = true
	for _, s := range h.sessions {
		if s.epochs[epoch] && s.until.IsZero() {
			s.until = now
		}
	}
}

// moves notes that a session is to be moved to one of these nodes: a node that is started anew has another epoch.
func (h *history) moves(id string, to ...string) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil {
		return
	}
	s.moves++
	for _, epoch := range to {
		s.epochs[epoch] = true
		if h.ended[epoch] && s.until.IsZero() { // it was killed meanwhile
			s.until = now
		}
	}
}

// hasMoved notes the answer to a move: it was made, it was not, or nobody knows.
func (h *history) hasMoved(id string, known, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok {
		h.counts["moves"]++
	}
	s := h.sessions[id]
	if s == nil {
		return
	}
	if known {
		s.moves--
	}
	s.moved = time.Now()
}

// isAt notes that a session was on a node some time after it was asked for.
func (h *history) isAt(id, epoch string, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[id]; s != nil && s.moves == 0 && sent.After(s.moved) {
		s.epochs = map[string]bool{epoch: true}
	}
}

// counted notes that a command has counted in the shell: each of a session's commands gets another number, and a later one a greater one.
func (h *history) counted(id string, x numbered, exec, output string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil {
		return
	}
	for _, y := range s.numbers {
		if x.n == y.n || x.n < y.n && x.sent.After(y.answered) || x.n > y.n && y.sent.After(x.answered) {
			h.wrong = append(h.wrong, fmt.Sprintf("%s: the shell has lost its state: %+v and %+v", id, y, x))
		}
	}
	s.numbers = append(s.numbers, x)
	s.last = [2]string{exec, output}
}

// lastOf returns a command of the session that has ended, and its output.
func (h *history) lastOf(id string) (exec, output string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[id]; s != nil {
		exec, output = s.last[0], s.last[1]
	}
	return exec, output
}

// over notes that a client was told that a session is over, by an error or by the answer to its end.
func (h *history) over(id string, err error) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil {
		return
	}
	if s.until.IsZero() {
		h.wrong = append(h.wrong, fmt.Sprintf("%s of %s, made at %s, may be on %v, of which %v were killed: it is said to be over, and nobody ended it: %v",
			id, s.principal, s.from.Format(clock), slices.Sorted(maps.Keys(s.epochs)), slices.Sorted(maps.Keys(h.ended)), err))
		s.until = now
	}
	if s.told.IsZero() {
		s.told = now
	}
}

// used notes that something was done in a session, by a request that was sent at a time.
func (h *history) used(id, principal string, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	switch {
	case s == nil: // made by a request whose answer was lost
	case s.principal != principal:
		h.wrong = append(h.wrong, fmt.Sprintf("%s of %s was used by %s", id, s.principal, principal))
	case !s.told.IsZero() && sent.After(s.told):
		h.wrong = append(h.wrong, fmt.Sprintf("%s was over, and is used again", id))
	}
}

// listed notes a session of a principal's list.
func (h *history) listed(id, owner, principal string) {
	h.used(id, principal, time.Time{})
	if owner != principal {
		h.fault("%s sees %s of %s", principal, id, owner)
	}
}

// command returns the text of a command that leaves a trace each time it runs, and counts in its shell.
func (h *history) command(principal, key string) string {
	return fmt.Sprintf("echo %s >>%s; N=$((N+1)); echo done $N", key, filepath.Join(h.dir, principal))
}

// ran notes that the command of a request key was said to have run.
func (h *history) ran(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys[key] = true
	h.counts["commands"]++
}

// took notes how long a step took.
func (h *history) took(what string, began time.Time) {
	d := time.Since(began)
	h.mu.Lock()
	defer h.mu.Unlock()
	if d > h.longest {
		h.longest, h.longestOf = d, what
	}
	if d > stepLimit {
		h.wrong = append(h.wrong, fmt.Sprintf("%s took %s", what, d))
	}
}

// of describes a session.
func (h *history) of(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[id]; s != nil {
		return fmt.Sprintf("%s from %s until %s, over at %s", id, s.from.Format(clock), s.until.Format(clock), s.told.Format(clock))
	}
	return id + " is unknown"
}

// blames reports whether a line of a log names a session of which something is wrong.
func (h *history) blames(line string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.sessions {
		if strings.Contains(line, id) && slices.ContainsFunc(h.wrong, func(wrong string) bool { return strings.Contains(wrong, id) }) {
			return true
		}
	}
	return false
}

const clock = "15:04:05.000"

// check reports everything that is wrong. lostName tells whether a node has said that a session lost its name to one of another node.
func (h *history) check(t *testing.T, lostName func(id string) bool) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.wrong {
		t.Error(w)
	}

	// Each name was of one session at a time.
	end := time.Now()
	byName := map[[2]string][]*pastSession{}
	for _, s := range h.sessions {
		if s.name != "" {
			byName[[2]string{s.principal, s.name}] = append(byName[[2]string{s.principal, s.name}], s)
		}
	}
	for name, all := range byName {
		slices.SortFunc(all, func(a, b *pastSession) int { return a.from.Compare(b.from) })
		for i, s := range all[1:] {
			before := all[i]
			until := before.until
			if until.IsZero() {
				until = end
			}
			switch {
			case !s.from.Before(until):
			case lostName(before.id):
				h.counts["names lost"]++
			default:
				t.Errorf("%v is of %s until %s, and of %s from %s on", name, before.id, until, s.id, s.from)
			}
		}
	}

	// Each command ran once, or at most once if nobody knows.
	runs := map[string]int{}
	files, err := filepath.Glob(filepath.Join(h.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			runs[strings.TrimSpace(line)]++
		}
	}
	for key, n := range runs {
		if n != 1 {
			t.Errorf("the command of %s ran %d times", key, n)
		}
	}
	for key := range h.keys {
		if runs[key] == 0 {
			t.Errorf("the command of %s was said to have run, and did not", key)
		}
	}
	t.Logf("%d sessions, %d traces of commands; the longest step took %s (%s); %v", len(h.sessions), len(runs), h.longest.Round(time.Millisecond), h.longestOf, h.counts)
}

// lacks says what of all that clients do no client has done yet; "": nothing.
func (h *history) lacks() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, what := range []string{"created", "created by key", "commands", "commands killed", "streams", "lists", "destroyed", "sessions killed", "moves"} {
		if h.counts[what] == 0 {
			return what
		}
	}
	return ""
}
