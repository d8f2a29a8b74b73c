package stream

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/own"
)

// HeldFiles are files of a process or a terminal that its shells open through the keeper. The process or terminal calls CloseFiles at
// its end. The keeper holds the files until the end is written to the session log and Release is called, because until then the next
// gateway may need them.
type HeldFiles struct {
	Owner string // "process" or "terminal", in errors
	Group own.KeptGroup

	mu      sync.Mutex
	ours    []int       // our descriptors; closing guarded by mu, because a process may end before its gate is opened
	numbers []int       // the keeper's numbers for them
	files   []HeldFile  // the same numbers with their inodes, for the entry
	gate    own.Channel // see GatePath; its descriptors are in ours; W is 0 if no process waits
}

// MakeChannels makes channels that the shell opens.
func (h *HeldFiles) MakeChannels(kinds ...own.ChannelKind) ([]own.Channel, error) {
	made, _, err := h.Group.MakeChannels(kinds)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Owner, err)
	}
	for _, m := range made {
		for fd, number := range map[int]int{m.R: m.HeldR, m.W: m.HeldW} {
			if fd < 0 {
				continue
			}
			h.ours = append(h.ours, fd)
			if number >= 0 {
				h.numbers = append(h.numbers, number)
				h.files = append(h.files, ToHeldFiles([]int{number}, fd)...)
			}
		}
	}
	return made, nil
}

// HoldText puts text into a file, and returns the number by which shells find it.
func (h *HeldFiles) HoldText(text []byte) (number int, err error) {
	made, err := h.MakeChannels(own.MemFile)
	if err != nil {
		return -1, err
	}
	return made[0].FileNumber, descriptor.WriteMemfd(made[0].W, text)
}

// HoldAtGate is HoldText for the text to run, and makes the gate at which the process waits.
func (h *HeldFiles) HoldAtGate(text []byte) (number int, err error) {
	made, err := h.MakeChannels(own.MemFile, own.OutPipe)
	if err != nil {
		return -1, err
	}
	h.gate = made[1] // an OutPipe although the shell reads from it: both ends stay open, so we can write before the shell reads
	return made[0].FileNumber, descriptor.WriteMemfd(made[0].W, text)
}

// GatePath returns the path of the gate. A fresh shell reads a line from it before it runs the text; OpenGate writes that line. The
// read fails if nobody can open the gate any more.
func (h *HeldFiles) GatePath() string { return fmt.Sprintf("%s/%d", h.Group.Dir(), h.gate.FileNumber) }

// GateNumbers returns the number by which shells find the gate, and the keeper's number for its write end.
func (h *HeldFiles) GateNumbers() (file, held int) { return h.gate.FileNumber, h.gate.HeldW }

// OpenGate lets the process run that waits at the gate.
func (h *HeldFiles) OpenGate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate.W > 0 && h.ours != nil {
		_, _ = unix.Write(h.gate.W, []byte("\n"))
	}
}

// Restore takes over the files of the last gateway, and opens the gate, because that gateway may have died before it did. gate is the
// keeper's number for the gate's write end.
func (h *HeldFiles) Restore(r *Restorer, known []HeldFile, gate int) {
	for _, f := range known {
		if fd := r.TakeFile(f); fd >= 0 {
			h.ours, h.numbers = append(h.ours, fd), append(h.numbers, f.Number)
			if f.Number == gate {
				h.gate.W = fd
			}
		}
	}
	h.OpenGate()
}

// Files returns what the next gateway needs for Restore.
func (h *HeldFiles) Files() []HeldFile { return h.files }

// File returns our descriptor of the file with the keeper's number, -1 if there is none.
func (h *HeldFiles) File(number int) int {
	for i, n := range h.numbers {
		if n == number {
			return h.ours[i]
		}
	}
	return -1
}

// CloseFiles closes our descriptors.
func (h *HeldFiles) CloseFiles() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, fd := range h.ours {
		unix.Close(fd)
	}
	h.ours = nil
}

// Release makes the keeper close its descriptors.
func (h *HeldFiles) Release() {
	if h.numbers != nil {
		h.Group.Drop(h.numbers...)
		h.numbers = nil
	}
}
