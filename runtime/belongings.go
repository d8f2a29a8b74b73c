package runtime

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// belongings are what a process or a terminal has for as long as it lives, and the keeper until its end is written down:
// by then our successor may need them. Its owner closes the files at its end, and calls release after that.
type belongings struct {
	of    string // "process" or "terminal", in errors
	group KeptGroup
	child KeptChild // nil of a shell's copy; set once
	mu    sync.Mutex
	files []int      // descriptors of ours; closing guarded by mu: an end may come before the gate is opened
	held  []int      // what the keeper calls them
	known []HeldFile // the same with what they are, for the record
	gate  Made       // see gateLine; of files; its W is 0 where nothing waits
}

// make makes what the shell opens.
func (b *belongings) make(kinds ...Kind) ([]Made, error) {
	made, _, err := b.group.Make(kinds)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.of, err)
	}
	for _, m := range made {
		for fd, number := range map[int]int{m.R: m.NR, m.W: m.NW} {
			if fd < 0 {
				continue
			}
			b.files = append(b.files, fd)
			if number >= 0 {
				b.held = append(b.held, number)
				b.known = append(b.known, heldFiles([]int{number}, fd)...)
			}
		}
	}
	return made, nil
}

// hold puts text into a file, and returns the number by which shells find it.
func (b *belongings) hold(text []byte) (number int, err error) {
	made, err := b.make(MemFile)
	if err != nil {
		return -1, err
	}
	return made[0].Port, fill(made[0].W, text)
}

// holdBack is hold for what is to be run, and makes the gate that it waits at.
func (b *belongings) holdBack(text []byte) (number int, err error) {
	made, err := b.make(MemFile, OutPipe)
	if err != nil {
		return -1, err
	}
	b.gate = made[1] // though it is the shell that reads: we may write before it comes to that, so both ends stay open
	return made[0].Port, fill(made[0].W, text)
}

// gateLine makes a fresh shell wait until it is let through; one that nobody will let through any more ends.
func (b *belongings) gateLine(k *kind) string {
	return fmt.Sprintf("%s -r __trl_w <%s/%d || exit; unset -v __trl_w\n", k.call("read"), b.group.Dir(), b.gate.Port)
}

// letGo opens the gate.
func (b *belongings) letGo() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gate.W > 0 && b.files != nil {
		_, _ = unix.Write(b.gate.W, []byte("\n"))
	}
}

// takeOver brings back what a predecessor of ours had, and opens the gate: it may have died before it came to that.
func (b *belongings) takeOver(a *Adoption, known []HeldFile, gate int) {
	for _, f := range known {
		if fd := a.takeFile(f); fd >= 0 {
			b.files, b.held = append(b.files, fd), append(b.held, f.Number)
			if f.Number == gate {
				b.gate.W = fd
			}
		}
	}
	b.letGo()
}

func (b *belongings) closeFiles() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fd := range b.files {
		unix.Close(fd)
	}
	b.files = nil
}

func (b *belongings) release() {
	if b.child != nil {
		b.child.Close()
	}
	if b.held != nil {
		b.group.Drop(b.held...)
		b.held = nil
	}
}
