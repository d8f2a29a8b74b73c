package own

import (
	"strconv"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// ShareText makes text readable for the session's shells at path, until done is called or the gateway ends.
func ShareText(group KeptGroup, text []byte) (path string, done func(), err error) {
	if !group.UsesFIFOs() { // then the shell can open our descriptor, and the keeper need not be asked
		fd, err := descriptor.Memfd("lent")
		if err != nil {
			return "", nil, err
		}
		path, done = descriptor.OwnDir()+"/"+strconv.Itoa(fd), func() { unix.Close(fd) }
		return sharedText(path, done, descriptor.WriteMemfd(fd, text))
	}
	made, _, err := group.MakeChannels([]ChannelKind{MemFile})
	if err != nil {
		return "", nil, err
	}
	path = group.Dir() + "/" + strconv.Itoa(made[0].FileNumber)
	done = func() {
		unix.Close(made[0].W)
		group.Drop(made[0].HeldW)
	}
	return sharedText(path, done, descriptor.WriteMemfd(made[0].W, text))
}

func sharedText(path string, done func(), err error) (string, func(), error) {
	if err != nil {
		done()
		return "", nil, err
	}
	return path, done, nil
}
