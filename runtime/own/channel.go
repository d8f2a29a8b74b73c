package own

import (
	"fmt"

	"trl/runtime/descriptor"
)

// A ChannelKind says which end of a Channel the shell uses.
type ChannelKind int

const (
	OutPipe  ChannelKind = iota // the shell writes
	InPipe                      // the shell reads, and no other process may, see confinement.makeChannel in runtime/host
	MemFile                     // both sides read and write
	BothPipe                    // an OutPipe; if the group uses no FIFOs, R is both ends, and there is no W
)

// A Channel is a pipe or a file that we hold and that the session's shells open.
type Channel struct {
	R, W         int // our descriptors; a MemFile has only W, a BothPipe may have only R: the other one is -1
	HeldR, HeldW int // the keeper's numbers for R and W, the same for a BothPipe; -1: the keeper does not hold that one
	FileNumber   int // the name, in the session's Dir, of the end that the shell opens
}

// CloseChannels closes our descriptors of the channels. The keeper still holds its own.
func CloseChannels(all []Channel) {
	for _, m := range all {
		descriptor.Close(&m.R)
		descriptor.Close(&m.W)
	}
}

// MakeAnonymousChannels is MakeChannels for a group that does not use FIFOs. Every pipe and file that it makes already
// has a path below /proc.
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
		switch k {
		case MemFile:
			m.W, err = descriptor.Memfd("file")
		case BothPipe:
			m.R, err = descriptor.BothEnds()
		default:
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
		if m.W >= 0 {
			fds = append(fds, m.W)
		}
	}
	if numbers, err = g.Hold(append(fds, also...)...); err != nil {
		return made, nil, fmt.Errorf("hold: %w", err)
	}
	for i := range made {
		m := &made[i]
		if m.R >= 0 {
			m.HeldR, numbers = numbers[0], numbers[1:]
		}
		if m.W >= 0 {
			m.HeldW, numbers = numbers[0], numbers[1:]
		} else {
			m.HeldW = m.HeldR
		}
		m.FileNumber = m.HeldW
		if kinds[i] == InPipe {
			m.FileNumber = m.HeldR
		}
	}
	return made, numbers, nil
}
