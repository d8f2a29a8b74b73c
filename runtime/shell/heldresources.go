package shell

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/stream"
)

// heldResources are the files and the child of a process or a terminal. The process or terminal closes the files at its end. The
// keeper holds them until the end is written to the session log and release is called, because until then the next gateway may
// need them.
type heldResources struct {
	owner       string // "process" or "terminal", in errors
	group       own.KeptGroup
	child       own.KeptChild // nil for a shell's copy; set once
	mu          sync.Mutex
	files       []int             // our descriptors; closing guarded by mu, because a process may end before its gate is opened
	heldNumbers []int             // the keeper's numbers for them
	heldFiles   []stream.HeldFile // the same numbers with their inodes, for the entry
	startGate   own.Channel       // see gateLine; its descriptors are in files; W is 0 if no process waits
}

// makeChannels makes channels that the shell opens.
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
				b.heldFiles = append(b.heldFiles, stream.HeldFiles([]int{number}, fd)...)
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

// holdAtGate is holdText for the text to run, and makes the gate at which the process waits.
func (b *heldResources) holdAtGate(text []byte) (number int, err error) {
	made, err := b.makeChannels(own.MemFile, own.OutPipe)
	if err != nil {
		return -1, err
	}
	b.startGate = made[1] // an OutPipe although the shell reads from it: both ends stay open, so we can write before the shell reads
	return made[0].FileNumber, writeMemfd(made[0].W, text)
}

// gateLine returns the line that makes a fresh shell wait until openGate. The shell exits if nobody can open the gate any more.
func (b *heldResources) gateLine(k *dialect.Dialect) string {
	return fmt.Sprintf("%s -r __trl_w <%s/%d || exit; unset -v __trl_w\n", k.Call("read"), b.group.Dir(), b.startGate.FileNumber)
}

// openGate lets the process run that waits at the gate.
func (b *heldResources) openGate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.startGate.W > 0 && b.files != nil {
		_, _ = unix.Write(b.startGate.W, []byte("\n"))
	}
}

// restore takes over the resources of the last gateway, and opens the gate, because that gateway may have died before it did.
func (b *heldResources) restore(a *Adoption, known []stream.HeldFile, gate int) {
	for _, f := range known {
		if fd := a.TakeFile(f); fd >= 0 {
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
