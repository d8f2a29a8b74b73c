package own

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Scarce tells whether err means that processes, descriptors, memory or the room in a file system in memory are used up at the moment.
func Scarce(err error) bool {
	short := []error{unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSPC, unix.EDQUOT}
	return slices.ContainsFunc(short, func(e error) bool { return errors.Is(err, e) })
}
