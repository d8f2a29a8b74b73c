package sessionlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// The archive is the far part of a session log's file. It has the output of ended commands, processes and terminals that a session keeps,
// and the snapshot of a shell at rest, so that none of them needs its own descriptor. The file is sparse, so the part in between needs no memory.
//
// The archive is a queue of records, each a header and a body. A record is written after the last one, and its header after its body; a
// record without a valid header does not count. A released record stays in the queue, without its body, until it is the first one. The
// header of the session log says where the first record is.
const (
	archiveBegin     = 1 << 40
	archivedHeader   = 48 // size of the body, Key, whether the record is released, checksum of size and Key
	archivedReleased = 32 // the place in a header of the flag that the record is released
)

// A Key identifies a record. The writer chooses it.
type Key [3]uint64

// SnapshotKey is the key of the snapshot of a shell at rest, see snapshot.Files. No output has it.
var SnapshotKey Key

// Archived is a record that is not released. Its ReadAt reads the body.
type Archived struct {
	Key Key

	l        *Log
	at, size int64
	released bool      // guarded by l.archive.mu
	next     *Archived // guarded by l.archive.mu
}

// archive is the queue. Its mutex comes before Log.mu.
type archive struct {
	mu          sync.Mutex
	first, last *Archived // guarded by mu; nil: there are no records
	end         int64     // guarded by mu; the place of the next record
}

// A Remote writes to a session log's file for a process that has closed the file.
type Remote interface {
	WriteAt(p []byte, at int64)
	Punch(from, to int64) // frees the memory of a part
}

// errNotLocal says that the session log's file is not open in this process.
var errNotLocal = errors.New("session log is not open here")

// openArchive finds the records that another process left, and frees unfinished ones.
func (l *Log) openArchive(first, size int64) error {
	a := &l.archive
	a.end = max(first, archiveBegin)
	for a.end+archivedHeader <= size {
		var h [archivedHeader]byte
		if err := readAt(l.fd, h[:], a.end); err != nil {
			return err
		}
		k := &Archived{l: l, at: a.end, size: int64(binary.LittleEndian.Uint64(h[:]))}
		for i := range k.Key {
			k.Key[i] = binary.LittleEndian.Uint64(h[8+8*i:])
		}
		sum := uint64(crc32.Checksum(h[:archivedReleased], table))
		if binary.LittleEndian.Uint64(h[archivedReleased+8:]) != sum || k.size < 0 || k.size > size-a.end-archivedHeader {
			break
		}
		k.released = binary.LittleEndian.Uint64(h[archivedReleased:]) != 0
		a.addLocked(k)
	}
	if size > a.end {
		if err := unix.Ftruncate(l.fd, a.end); err != nil {
			return fmt.Errorf("session log: %w", err)
		}
	}
	if first > archiveBegin {
		_ = punch(l.fd, archiveBegin, first)
	}
	return nil
}

// addLocked adds a record to the end of the queue. mu is held.
func (a *archive) addLocked(k *Archived) {
	if a.last == nil {
		a.first = k
	} else {
		a.last.next = k
	}
	a.last = k
	a.end = k.at + archivedHeader + (k.size+7)/8*8
}

// Archive adds a record. write writes its body of size bytes. If Archive fails, it keeps nothing.
func (l *Log) Archive(key Key, size int64, write func(io.Writer) error) (*Archived, error) {
	a := &l.archive
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.fileLocked() < 0 {
		return nil, errNotLocal
	}
	a.end = max(a.end, archiveBegin)
	k := &Archived{Key: key, l: l, at: a.end, size: size}
	body := &offsetWriter{l.fd, k.at + archivedHeader}
	err := write(body)
	if err == nil && body.at != k.at+archivedHeader+size {
		err = io.ErrShortWrite
	}
	if err == nil {
		h := binary.LittleEndian.AppendUint64(make([]byte, 0, archivedHeader), uint64(size))
		for _, n := range key {
			h = binary.LittleEndian.AppendUint64(h, n)
		}
		sum := uint64(crc32.Checksum(h, table))
		h = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(h, 0), sum)
		_, err = (&offsetWriter{l.fd, k.at}).Write(h)
	}
	if err != nil { // the next record must not be followed by parts of this one
		_ = unix.Ftruncate(l.fd, k.at)
		return nil, fmt.Errorf("session log: %w", err)
	}
	a.addLocked(k)
	return k, nil
}

// fileLocked returns the file's descriptor, which stays open while archive.mu is held; -1: it is not open here.
func (l *Log) fileLocked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fd
}

// Archived lists the records that are not released.
func (l *Log) Archived() (all []*Archived) {
	l.archive.mu.Lock()
	defer l.archive.mu.Unlock()
	for k := l.archive.first; k != nil; k = k.next {
		if !k.released {
			all = append(all, k)
		}
	}
	return all
}

// ReadAt reads from the body.
func (k *Archived) ReadAt(p []byte, off int64) (int, error) {
	k.l.archive.mu.Lock()
	defer k.l.archive.mu.Unlock()
	switch fd := k.l.fileLocked(); {
	case fd < 0:
		return 0, errNotLocal
	case k.released || off < 0 || off+int64(len(p)) > k.size:
		return 0, io.EOF
	default:
		if err := readAt(fd, p, k.at+archivedHeader+off); err != nil {
			return 0, err
		}
		return len(p), nil
	}
}

// Size returns the size of the body.
func (k *Archived) Size() int64 { return k.size }

// Release frees a record's memory. It is idempotent.
func (k *Archived) Release() {
	l, a := k.l, &k.l.archive
	a.mu.Lock()
	defer a.mu.Unlock()
	if k.released {
		return
	}
	k.released = true
	file := l.remoteLocked()
	if k != a.first {
		file.WriteAt(binary.LittleEndian.AppendUint64(nil, 1), k.at+archivedReleased)
		file.Punch(k.at+archivedHeader, k.at+archivedHeader+k.size)
		return
	}
	from, to := k.at, a.end
	for a.first != nil && a.first.released {
		a.first = a.first.next
	}
	if a.first == nil {
		a.last = nil
	} else {
		to = a.first.at
	}
	file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(to)), headerFirst)
	page := int64(unix.Getpagesize())
	file.Punch(from/page*page, to) // earlier parts are already freed
}

// remoteLocked returns the writer to the file. archive.mu is held.
func (l *Log) remoteLocked() Remote {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remote != nil {
		return l.remote
	}
	return local(l.fd)
}

// CloseLocal closes the file in this process. From then on r writes to it. It is for a session log that gets at most a few more short entries. The log
// can no longer be read, compacted or archived to.
func (l *Log) CloseLocal(r Remote) {
	l.archive.mu.Lock()
	defer l.archive.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 {
		l.remote = r
		unix.Close(l.fd)
		l.fd = -1
	}
}

// local is a Remote for the process that has the file open. The headers of a record and of the session log already exist, so writing there
// needs no memory and does not fail.
type local int

func (fd local) WriteAt(p []byte, at int64) { _, _ = (&offsetWriter{int(fd), at}).Write(p) }
func (fd local) Punch(from, to int64)       { _ = punch(int(fd), from, to) }

// punch frees the memory of a part of a file.
func punch(fd int, from, to int64) error {
	if from >= to {
		return nil
	}
	for {
		err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
		if err != unix.EINTR {
			return err
		}
	}
}

// An offsetWriter writes to a file from a place onwards.
type offsetWriter struct {
	fd int
	at int64
}

func (w *offsetWriter) Write(p []byte) (n int, err error) {
	for n < len(p) {
		k, err := unix.Pwrite(w.fd, p[n:], w.at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		n += k
		w.at += int64(k)
	}
	return n, nil
}
