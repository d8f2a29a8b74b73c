package shell

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/dialect"
	"trl/runtime/own"
)

// heldResources are what a process or a terminal has for as long as it lives, and the keeper until its end is written down:
// by then our successor may need them. Its owner closes the files at its end, and calls release after that.
type heldResources struct {
	owner       string // "process" or "terminal", in errors
	group       own.KeptGroup
	child       own.KeptChild // nil of a shell's copy; set once
	mu          sync.Mutex
	files       []int       // descriptors of ours; closing guarded by mu: an end may come before the gate is opened
	heldNumbers []int       // what the keeper calls them
	heldFiles   []HeldFile  // the same with what they are, for the record
	startGate   own.Channel // see gateLine; of files; its W is 0 where nothing waits
}

// makeChannels makes what the shell opens.
func (b *heldResources) makeChannels(kinds ...own.ChannelKind) ([]own.Channel, error) {
	made, _, err := b.group.MakeChannels(kinds)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.owner, err)
	}
	for _, m := range made {
		for fd, number := range map[int]int{m.R: m.HeldR, m.W: m.HeldW} {
			if fd < 0 {
				continue
			}
			b.files = append(b.files, fd)
			if number >= 0 {
				b.heldNumbers = append(b.heldNumbers, number)
				b.heldFiles = append(b.heldFiles, heldFiles([]int{number}, fd)...)
			}
		}
	}
	return made, nil
}

// holdText puts text into a file, and returns the number by which shells find it.
func (b *heldResources) holdText(text []byte) (number int, err error) {
	made, err := b.makeChannels(own.MemFile)
	if err != nil {
		return -1, err
	}
	return made[0].FileNumber, writeMemfd(made[0].W, text)
}

// holdAtGate is hold for what is to be run, and makes the gate that it waits at.
func (b *heldResources) holdAtGate(text []byte) (number int, err error) {
	made, err := b.makeChannels(own.MemFile, own.OutPipe)
	if err != nil {
		return -1, err
	}
	b.startGate = made[1] // though it is the shell that reads: we may write before it comes to that, so both ends stay open
	return made[0].FileNumber, writeMemfd(made[0].W, text)
}

// gateLine makes a fresh shell wait until it is let through; one that nobody will let through any more ends.
func (b *heldResources) gateLine(k *dialect.Dialect) string {
	return fmt.Sprintf("%s -r __trl_w <%s/%d || exit; unset -v __trl_w\n", k.Call("read"), b.group.Dir(), b.startGate.FileNumber)
}

// openGate opens the gate.
func (b *heldResources) openGate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.startGate.W > 0 && b.files != nil {
		_, _ = unix.Write(b.startGate.W, []byte("\n"))
	}
}

// restore brings back what a predecessor of ours had, and opens the gate: it may have died before it came to that.
func (b *heldResources) restore(a *Adoption, known []HeldFile, gate int) {
	for _, f := range known {
		if fd := a.takeFile(f); fd >= 0 {
			b.files, b.heldNumbers = append(b.files, fd), append(b.heldNumbers, f.Number)
			if f.Number == gate {
				b.startGate.W = fd
			}
		}
	}
	b.openGate()
}

func (b *heldResources) closeFiles() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fd := range b.files {
		unix.Close(fd)
	}
	b.files = nil
}

func (b *heldResources) release() {
	if b.child != nil {
		b.child.Close()
	}
	if b.heldNumbers != nil {
		b.group.Drop(b.heldNumbers...)
		b.heldNumbers = nil
	}
}
