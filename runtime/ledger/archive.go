package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// An archive is the far part of a ledger's file: what a session keeps of output that is complete. An ended command, process
// or terminal needs no descriptor of its own there. The file is sparse, so the part between costs nothing.
//
// The archive is a queue of records, each a header and a body. A record is written behind the last one, its header after
// its body, so that a record without a valid header is none. A record that was released stays in the queue, without its
// body, until it is the first. The header of the ledger says where the first record is.
const (
	archiveBegin = 1 << 40
	recordHeader = 48 // size of the body, Key, whether it was released, checksum of size and Key
	recordGone   = 32 // where in a header it stands that the record was released
)

// A Key names a record. The writer chooses it.
type Key [3]uint64

// Kept is a record that has not been released. Its ReadAt reads the body.
type Kept struct {
	Key Key

	l        *Ledger
	at, size int64
	gone     bool  // guarded by l.archive.mu
	next     *Kept // guarded by l.archive.mu
}

// archive is the queue. Its mutex comes before Ledger.mu.
type archive struct {
	mu          sync.Mutex
	first, last *Kept // guarded by mu; nil: there is none
	end         int64 // guarded by mu; where the next record goes
}

// A Remote writes to a ledger's file for a process that has closed it.
type Remote interface {
	WriteAt(p []byte, at int64)
	Punch(from, to int64) // gives back the memory of a part
}

// errParked says that the ledger's file is not open here.
var errParked = errors.New("ledger is parked")

// openArchive finds the records that another process left, and gives back what it had not finished.
func (l *Ledger) openArchive(first, size int64) error {
	a := &l.archive
	a.end = max(first, archiveBegin)
	for a.end+recordHeader <= size {
		var h [recordHeader]byte
		if err := readAt(l.fd, h[:], a.end); err != nil {
			return err
		}
		k := &Kept{l: l, at: a.end, size: int64(binary.LittleEndian.Uint64(h[:]))}
		for i := range k.Key {
			k.Key[i] = binary.LittleEndian.Uint64(h[8+8*i:])
		}
		sum := uint64(crc32.Checksum(h[:recordGone], table))
		if binary.LittleEndian.Uint64(h[recordGone+8:]) != sum || k.size < 0 || k.size > size-a.end-recordHeader {
			break
		}
		k.gone = binary.LittleEndian.Uint64(h[recordGone:]) != 0
		a.addLocked(k)
	}
	if size > a.end {
		if err := unix.Ftruncate(l.fd, a.end); err != nil {
			return fmt.Errorf("ledger: %w", err)
		}
	}
	if first > archiveBegin {
		_ = punch(l.fd, archiveBegin, first)
	}
	return nil
}

// addLocked puts a record at the end of the queue. mu is held.
func (a *archive) addLocked(k *Kept) {
	if a.last == nil {
		a.first = k
	} else {
		a.last.next = k
	}
	a.last = k
	a.end = k.at + recordHeader + (k.size+7)/8*8
}

// Keep adds a record. write writes its body, of size bytes. Where Keep fails, nothing is kept.
func (l *Ledger) Keep(key Key, size int64, write func(io.Writer) error) (*Kept, error) {
	a := &l.archive
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.fileLocked() < 0 {
		return nil, errParked
	}
	a.end = max(a.end, archiveBegin)
	k := &Kept{Key: key, l: l, at: a.end, size: size}
	body := &offsetWriter{l.fd, k.at + recordHeader}
	err := write(body)
	if err == nil && body.at != k.at+recordHeader+size {
		err = io.ErrShortWrite
	}
	if err == nil {
		h := binary.LittleEndian.AppendUint64(make([]byte, 0, recordHeader), uint64(size))
		for _, n := range key {
			h = binary.LittleEndian.AppendUint64(h, n)
		}
		sum := uint64(crc32.Checksum(h, table))
		h = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(h, 0), sum)
		_, err = (&offsetWriter{l.fd, k.at}).Write(h)
	}
	if err != nil { // the next record must not be followed by what was written of this one
		_ = unix.Ftruncate(l.fd, k.at)
		return nil, fmt.Errorf("ledger: %w", err)
	}
	a.addLocked(k)
	return k, nil
}

// fileLocked is the file's descriptor, which stays open as long as archive.mu is held; -1: it is not open here.
func (l *Ledger) fileLocked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fd
}

// Kept lists the records that have not been released.
func (l *Ledger) Kept() (all []*Kept) {
	l.archive.mu.Lock()
	defer l.archive.mu.Unlock()
	for k := l.archive.first; k != nil; k = k.next {
		if !k.gone {
			all = append(all, k)
		}
	}
	return all
}

// ReadAt reads from the body.
func (k *Kept) ReadAt(p []byte, off int64) (int, error) {
	k.l.archive.mu.Lock()
	defer k.l.archive.mu.Unlock()
	switch fd := k.l.fileLocked(); {
	case fd < 0:
		return 0, errParked
	case k.gone || off < 0 || off+int64(len(p)) > k.size:
		return 0, io.EOF
	default:
		if err := readAt(fd, p, k.at+recordHeader+off); err != nil {
			return 0, err
		}
		return len(p), nil
	}
}

// Release gives a record's memory back. Idempotent.
func (k *Kept) Release() {
	l, a := k.l, &k.l.archive
	a.mu.Lock()
	defer a.mu.Unlock()
	if k.gone {
		return
	}
	k.gone = true
	file := l.remoteLocked()
	if k != a.first {
		file.WriteAt(binary.LittleEndian.AppendUint64(nil, 1), k.at+recordGone)
		file.Punch(k.at+recordHeader, k.at+recordHeader+k.size)
		return
	}
	from, to := k.at, a.end
	for a.first != nil && a.first.gone {
		a.first = a.first.next
	}
	if a.first == nil {
		a.last = nil
	} else {
		to = a.first.at
	}
	file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(to)), headerFirst)
	page := int64(unix.Getpagesize())
	file.Punch(from/page*page, to) // what is before was given back already
}

// remoteLocked is how the file is written to. archive.mu is held.
func (l *Ledger) remoteLocked() Remote {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remote != nil {
		return l.remote
	}
	return local(l.fd)
}

// Park closes the file here. From now on r writes to it: for a ledger that gets a few short entries yet, if any. It
// cannot be read, restarted or kept in any more.
func (l *Ledger) Park(r Remote) {
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

// local is a Remote for the process that has the file open. The header of a record and that of the ledger exist, so that
// writing there takes no memory and does not fail.
type local int

func (fd local) WriteAt(p []byte, at int64) { _, _ = (&offsetWriter{int(fd), at}).Write(p) }
func (fd local) Punch(from, to int64)       { _ = punch(int(fd), from, to) }

// punch gives back the memory of a part of a file.
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

// An offsetWriter writes to a place in a file and behind it.
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
