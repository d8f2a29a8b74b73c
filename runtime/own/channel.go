package own

import (
	"fmt"

	"trl/runtime/descriptor"
)

// A ChannelKind of port.
type ChannelKind int

const (
	OutPipe ChannelKind = iota // the shell writes
	InPipe                     // the shell reads; nobody else may, see confinement.makeChannel
	MemFile                    // both do both
)

// Channel is a pipe or a file that we hold, and that the session's shells open.
type Channel struct {
	R, W         int // our descriptors; a file is W, and its R is -1
	HeldR, HeldW int // what the keeper calls them; -1: not held
	FileNumber   int // the name in the session's Dir of what the shell opens
}

// CloseChannels closes what Make gave, and nothing that is held.
func CloseChannels(all []Channel) {
	for _, m := range all {
		descriptor.Close(&m.R)
		descriptor.Close(&m.W)
	}
}

// MakeAnonymousChannels is Make for a group that is not Private: everything has a path below /proc as it is.
func MakeAnonymousChannels(g KeptGroup, kinds []ChannelKind, also ...int) (made []Channel, numbers []int, err error) {
	defer func() {
		if err != nil {
			CloseChannels(made)
			made, numbers = nil, nil
		}
	}()
	var fds []int
	for _, k := range kinds {
		m := Channel{R: -1, W: -1, HeldR: -1, HeldW: -1}
		if k == MemFile {
			m.W, err = descriptor.Memfd("file")
		} else {
			var fd [2]int
			ours := 0
			if k == InPipe {
				ours = 1
			}
			if fd, err = descriptor.HalfPipe(ours); err == nil {
				m.R, m.W = fd[0], fd[1]
			}
		}
		if err != nil {
			return made, nil, err
		}
		made = append(made, m)
		if m.R >= 0 {
			fds = append(fds, m.R)
		}
		fds = append(fds, m.W)
	}
	if numbers, err = g.Hold(append(fds, also...)...); err != nil {
		return made, nil, fmt.Errorf("hold: %w", err)
	}
	for i := range made {
		m := &made[i]
		if m.R >= 0 {
			m.HeldR, numbers = numbers[0], numbers[1:]
		}
		m.HeldW, numbers = numbers[0], numbers[1:]
		m.FileNumber = m.HeldW
		if kinds[i] == InPipe {
			m.FileNumber = m.HeldR
		}
	}
	return made, numbers, nil
}
