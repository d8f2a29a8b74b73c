package stream

import (
	"slices"

	"golang.org/x/sys/unix"

	"trl/runtime/own"
)

// HeldFile names a descriptor that the keeper holds: by the keeper's number, -1 once dropped, and by its inode. A dropped number
// soon means another file, and an entry may be older than that.
type HeldFile struct {
	Number int    `json:"n"`
	Inode  uint64 `json:"i"`
}

func inode(fd int) uint64 {
	var st unix.Stat_t
	if fd < 0 || unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

// ToHeldFiles returns the HeldFile for each of our descriptors and its number at the keeper.
func ToHeldFiles(numbers []int, fds ...int) []HeldFile {
	files := make([]HeldFile, len(numbers))
	for i, n := range numbers {
		files[i] = HeldFile{n, inode(fds[i])}
	}
	return files
}

// renumbered returns files with their present numbers.
func renumbered(files []HeldFile, held []int) []HeldFile {
	files = slices.Clone(files)
	for i, n := range held {
		files[i].Number = n
	}
	return files
}

// dropHeld makes the keeper close the descriptors with the numbers held[from:to]. It drops each number only once, because a dropped
// number soon means another file.
func dropHeld(group own.KeptGroup, held []int, from, to int) {
	var numbers []int
	for i := from; i < min(to, len(held)); i++ {
		if held[i] >= 0 {
			numbers = append(numbers, held[i])
			held[i] = -1
		}
	}
	if len(numbers) > 0 {
		group.Drop(numbers...)
	}
}
