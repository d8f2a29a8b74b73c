// Package sessionlog keeps what the next gateway must know of a session: small entries in a memfd that the keeper holds. Each entry is written by one
// system call and is valid only as a whole.
//
// The file consists of a header and entries one after the other. Compact writes a new beginning behind the old end, with a frame of zeros between them
// at which readers stop, and then changes the header to point to the new beginning. So a complete session log can be read at any moment, whatever was
// being written when we died.
//
// The writer decides the content of an entry. The archive (archive.go) is in the same file, far behind the entries.
package sessionlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/crashpoint"
)

const (
	magic       = "trlledg2"
	headerSize  = 24 // magic, the start of the entries, the archive's first record (0: at archiveBegin)
	headerFirst = 16
	frameSize   = 8 // length and checksum of an entry
	maxEntry    = 16 << 20
)

// memfdName distinguishes a session log from a file with similar content, such as a command's output.
const memfdName = "trl-ledger"

// ErrNotSessionLog: the descriptor is not a session log's.
var ErrNotSessionLog = errors.New("not a session log")

var table = crc32.MakeTable(crc32.Castagnoli)

// Log is one open session log. Its owner closes it. The memory is freed with the last descriptor, which is the keeper's.
type Log struct {
	archive archive

	mu          sync.Mutex
	fd          int    // guarded by mu, and for closing also by archive.mu, which comes before; -1 after Close or CloseLocal
	remote      Remote // guarded by mu; nil except after CloseLocal
	begin       int64  // guarded by mu; the start of the first entry
	end         int64  // guarded by mu; the place of the next entry
	compactSize int64  // guarded by mu; end - begin after the last Compact
	buf         []byte // guarded by mu; buffer for an entry
}

// compactBuffers are buffers for new beginnings, which are long and rare. All session logs share them.
var compactBuffers = sync.Pool{New: func() any { return new([]byte) }}

// New makes an empty session log.
func New() (*Log, error) {
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	l := &Log{fd: fd, begin: headerSize, end: headerSize}
	if _, err := unix.Pwrite(fd, make([]byte, headerSize), 0); err != nil {
		l.Close()
		return nil, fmt.Errorf("session log: %w", err)
	}
	if err := l.pointLocked(headerSize); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Open reads the entries that a session log's last writer left, and continues after them. It takes over the descriptor, unless it fails. It ignores an
// unfinished entry. read does not keep the bytes.
func Open(fd int, read func(entry []byte) error) (*Log, error) {
	var header [headerSize]byte
	if n, err := unix.Pread(fd, header[:], 0); err != nil || n < headerSize || string(header[:len(magic)]) != magic {
		return nil, ErrNotSessionLog
	}
	if file, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil || file != "/memfd:"+memfdName+" (deleted)" {
		return nil, ErrNotSessionLog
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("session log: %w", err)
	}
	l := &Log{fd: fd, begin: int64(binary.LittleEndian.Uint64(header[len(magic):]))}
	size := st.Size
	if size >= archiveBegin { // the entries have no holes; the archive is behind one
		hole, err := unix.Seek(fd, max(l.begin, 0), unix.SEEK_HOLE)
		if err != nil {
			return nil, fmt.Errorf("session log: %w", err)
		}
		size = min(hole, archiveBegin)
	}
	if l.begin < headerSize || l.begin > size {
		return nil, ErrNotSessionLog
	}
	all := make([]byte, size-l.begin)
	if err := readAt(fd, all, l.begin); err != nil {
		return nil, err
	}
	for l.end = l.begin; len(all) >= frameSize; {
		n := int64(binary.LittleEndian.Uint32(all))
		if n == 0 || n > maxEntry || frameSize+n > int64(len(all)) {
			break
		}
		entry := all[frameSize : frameSize+n]
		if crc32.Checksum(entry, table) != binary.LittleEndian.Uint32(all[4:]) {
			break
		}
		if err := read(entry); err != nil {
			return nil, err
		}
		l.end += frameSize + n
		all = all[frameSize+n:]
	}
	var err error
	if st.Size >= archiveBegin {
		err = l.cutLocked(l.end)
	} else {
		err = unix.Ftruncate(fd, l.end)
	}
	if err != nil {
		return nil, fmt.Errorf("session log: %w", err)
	}
	if err := l.openArchive(int64(binary.LittleEndian.Uint64(header[headerFirst:])), st.Size); err != nil {
		return nil, err
	}
	l.compactSize = l.end - l.begin
	return l, nil
}

// Fd returns the descriptor, for the keeper to hold.
func (l *Log) Fd() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fd
}

// A Position is the place of an entry, until the next Compact. The zero Position is no place.
type Position struct{ at, size int64 }

// Append adds an entry, which must not be empty.
func (l *Log) Append(entry []byte) (Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(entry) > maxEntry { // Open would stop reading at it
		return Position{}, fmt.Errorf("session log: %w", unix.EFBIG)
	}
	l.buf = frame(l.buf[:0], entry)
	at := l.end
	if err := l.writeLocked(l.buf, at); err != nil {
		return Position{}, err
	}
	return Position{at, l.end - at}, nil
}

// SetCompactSize sets the approximate size that a new beginning would have after Open. Only the rest counts as growth.
func (l *Log) SetCompactSize(size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compactSize = min(l.compactSize, size)
}

// ShouldCompact reports whether the session log has grown so much since its last beginning that a gateway would have to read too much: it is time for
// Compact.
func (l *Log) ShouldCompact() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end-l.begin > l.compactSize+l.compactSize/4+64<<10
}

// An Item is an entry of a new beginning: Text or, if that is empty, an existing entry, which is copied unchanged. Existing, if it is not nil, is then
// set to the new place.
type Item struct {
	Existing *Position
	Text     []byte
}

// size is the size of the item with its frame.
func (i Item) size() int64 {
	if i.Text != nil {
		return frameSize + int64(len(i.Text))
	}
	return i.Existing.size
}

// Compact replaces all entries by items. If it fails, nothing changes.
func (l *Log) Compact(items ...Item) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remote != nil {
		return errNotLocal
	}
	end, begin := l.end, l.end+frameSize
	defer func() {
		if err != nil { // none of it may be behind the next entry
			l.end = end
			_ = l.cutLocked(end)
		}
	}()
	size := int64(frameSize)
	for _, item := range items {
		size += item.size()
	}
	draft := compactBuffers.Get().(*[]byte)
	buf := append(slices.Grow((*draft)[:0], int(size)), make([]byte, frameSize)...)
	defer func() { *draft = buf; compactBuffers.Put(draft) }()
	for i := 0; i < len(items); {
		if items[i].Text != nil {
			buf = frame(buf, items[i].Text)
			i++
			continue
		}
		whole := *items[i].Existing // with the existing entries directly after it, in one read
		for i++; i < len(items) && items[i].Text == nil && items[i].Existing.at == whole.at+whole.size; i++ {
			whole.size += items[i].Existing.size
		}
		from := len(buf)
		buf = buf[:from+int(whole.size)]
		if err := readAt(l.fd, buf[from:], whole.at); err != nil {
			return err
		}
	}
	if err := l.writeLocked(buf, end); err != nil {
		return err
	}
	if err := l.pointLocked(begin); err != nil {
		return err
	}
	at := begin
	for _, item := range items {
		span := item.Existing
		if span == nil {
			span = new(Position)
		}
		*span = Position{at, item.size()}
		at += span.size
	}
	_ = unix.Fallocate(l.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, headerSize, begin-headerSize) // everything except the header's page
	l.begin, l.compactSize = begin, l.end-begin
	return nil
}

// Invalidate makes the file invalid as a session log and closes it. It is for a log that lacks an entry: nobody may read the later ones.
func (l *Log) Invalidate() {
	l.mu.Lock()
	if l.remote != nil {
		l.remote.WriteAt(make([]byte, headerSize), 0)
	} else {
		_ = unix.Ftruncate(l.fd, 0)
	}
	l.begin, l.end = 0, 0
	l.mu.Unlock()
	l.Close()
}

// Close closes our descriptor. It is idempotent.
func (l *Log) Close() {
	l.archive.mu.Lock()
	defer l.archive.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 {
		unix.Close(l.fd)
		l.fd = -1
	}
	l.remote = nil
}

// cutLocked makes at the end of the entries. The archive, which may be written meanwhile, stays.
func (l *Log) cutLocked(at int64) error { return punch(l.fd, at, archiveBegin) }

func frame(buf, entry []byte) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(entry)))
	buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(entry, table))
	return append(buf, entry...)
}

// writeLocked writes buf at the offset at, and moves the end behind it.
func (l *Log) writeLocked(buf []byte, at int64) error {
	crashpoint.Here("before an entry")
	if l.remote != nil {
		l.remote.WriteAt(buf, at)
		l.end = at + int64(len(buf))
		return nil
	}
	for off := 0; off < len(buf); {
		n, err := unix.Pwrite(l.fd, buf[off:], at+int64(off))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("session log: %w", err) // the end does not move: the next entry overwrites a partial one
		}
		off += n
	}
	l.end = at + int64(len(buf))
	crashpoint.Here("after an entry")
	return nil
}

func (l *Log) pointLocked(begin int64) error {
	crashpoint.Here("before a new beginning")
	header := binary.LittleEndian.AppendUint64([]byte(magic), uint64(begin))
	if _, err := unix.Pwrite(l.fd, header, 0); err != nil { // the rest of the header is the archive's
		return fmt.Errorf("session log: %w", err)
	}
	return nil
}

func readAt(fd int, p []byte, at int64) error {
	for off := 0; off < len(p); {
		n, err := unix.Pread(fd, p[off:], at+int64(off))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("session log: %w", err)
		}
		if n == 0 {
			return fmt.Errorf("session log: %w", unix.EIO)
		}
		off += n
	}
	return nil
}
