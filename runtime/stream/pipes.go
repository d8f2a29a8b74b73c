package stream

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/own"
)

// A Pipes is a pipe for stdout, a pipe for stderr and a Log. The keeper holds both ends of the pipes, and the shell
// opens them through the keeper; the gateway holds the read ends. Output goes into the log first. So neither the shell nor its
// output is affected when another gateway takes over.
//
// Commands use the same Pipes one after the other, until a command leaves a process behind that may hold the write ends. Then
// a Copier reads the old pipes (TakePipes) and the shell gets new ones. A Pipes belongs to the holder of the shell's turn,
// or to the Copier.
type Pipes struct {
	group own.KeptGroup
	log   *Log

	mu          sync.Mutex // a process may exit while its output ends
	r, w        [2]int     // closing guarded by mu; -1 once closed; w is -1, too, if no child inherits the write ends
	heldNumbers []int      // the keeper's numbers for r[0], r[1], w[0], w[1]; changes guarded by mu; -1 once dropped

	files []HeldFile // the same numbers with their inodes; set once, so also of dropped ones
}

// SavedPipes is what the next gateway must know to go on with a Pipes.
type SavedPipes struct {
	Pipes []HeldFile `json:"pipes"` // the read ends, the write ends
	Log   []HeldFile `json:"log"`
}

// NewPipes makes a Pipes. With inherited, a child will be started with the write ends.
func NewPipes(group own.KeptGroup, of *Logs, inherited bool) (*Pipes, error) {
	l := &Pipes{group: group, r: [2]int{-1, -1}, w: [2]int{-1, -1}}
	var err error
	if l.log, err = of.newLog(group); err != nil {
		return nil, err
	}
	fds := l.log.Fds()
	pipes, held, err := group.MakeChannels([]own.ChannelKind{own.OutPipe, own.OutPipe}, fds[:]...)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("output pipes: %w", err)
	}
	for i, p := range pipes {
		l.r[i], l.w[i] = p.R, p.W
	}
	l.heldNumbers, l.log.held = []int{pipes[0].HeldR, pipes[1].HeldR, pipes[0].HeldW, pipes[1].HeldW}, ToHeldFiles(held, fds[:]...)
	l.files = ToHeldFiles(l.heldNumbers, l.r[0], l.r[1], l.w[0], l.w[1])
	if group.HeldElsewhere() && !inherited {
		descriptor.Close(&l.w[0])
		descriptor.Close(&l.w[1])
	}
	return l, nil
}

// Saved returns what the next gateway needs.
func (l *Pipes) Saved() SavedPipes {
	l.mu.Lock()
	defer l.mu.Unlock()
	return SavedPipes{Pipes: renumbered(l.files, l.heldNumbers), Log: l.log.held}
}

// Discard reads and drops what is in the pipes. Only a shell that died before it read its line can have written there.
func (l *Pipes) Discard() {
	buf := GetBuffer()
	defer PutBuffer(buf)
	for _, fd := range l.r {
		for fd >= 0 {
			if n, err := unix.Read(fd, *buf); n <= 0 && err != unix.EINTR {
				break
			}
		}
	}
}

// WriteEnd returns the name of output i's write end in the group's Dir, where the shell opens it.
func (l *Pipes) WriteEnd(i int) int { return l.heldNumbers[2+i] }

// IsOpen tells whether a command can write to the pipes. It cannot after CloseWriters, also if an earlier gateway called it.
func (l *Pipes) IsOpen() bool { return l.heldNumbers[2] >= 0 && l.heldNumbers[3] >= 0 }

// CloseWriters closes our and the keeper's write ends, so that the pipes end when no other process has them open.
func (l *Pipes) CloseWriters() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.w {
		descriptor.Close(&l.w[i])
	}
	dropHeld(l.group, l.heldNumbers, 2, 4)
}

// Log returns the log through which the output goes.
func (l *Pipes) Log() *Log { return l.log }

// ReadEnds returns our read ends, -1 for one that was closed or taken.
func (l *Pipes) ReadEnds() [2]int { return l.r }

// WriteEnds returns our write ends, with which a child is started.
func (l *Pipes) WriteEnds() [2]int { return l.w }

// takeReadEnd returns the read end of output i. The caller closes it.
func (l *Pipes) takeReadEnd(i int) int {
	fd := l.r[i]
	l.r[i] = -1
	return fd
}

// Close closes the pipes, except for read ends that were taken, and finishes the log.
func (l *Pipes) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.r {
		descriptor.Close(&l.r[i])
		descriptor.Close(&l.w[i])
	}
	dropHeld(l.group, l.heldNumbers, 0, 4)
	if l.log != nil {
		l.log.finish()
	}
}
