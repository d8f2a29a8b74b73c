package audit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxTail is how far from the end a complete line is searched for: several times the longest line.
const maxTail = 4 << 20

// file is the file that is written to. Older files are named after the number of their first line, `audit.log.000000001234`, so that no name changes
// twice and a crash during a rotation leaves nothing incomplete.
type file struct {
	*os.File
	path    string
	size    int64
	first   uint64    // number of the first line; 0: no line yet
	firstAt time.Time // of the first line
}

var rotatedName = regexp.MustCompile(`^\.[0-9]{12}$`)

// rotated returns the older files of a log, in order.
func rotated(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries { // sorted by name and therefore by number
		if rest, ok := strings.CutPrefix(e.Name(), filepath.Base(path)); ok && rotatedName.MatchString(rest) {
			names = append(names, path+rest)
		}
	}
	return names, nil
}

// Files returns the files of a log, the oldest first.
func Files(path string) ([]string, error) {
	names, err := rotated(path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err == nil || len(names) == 0 {
		names = append(names, path)
	}
	return names, nil
}

// openFile opens the log to append to it, and finds the head of its chain. torn is how many bytes of an incomplete line a crash left at the end.
func openFile(path string) (f *file, h chainHead, torn []byte, err error) {
	raw, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, h, nil, err
	}
	defer func() {
		if err != nil {
			raw.Close()
		}
	}()
	info, err := raw.Stat()
	switch {
	case err != nil:
		return nil, h, nil, err
	case !info.Mode().IsRegular():
		return nil, h, nil, fmt.Errorf("%s is no regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, h, nil, fmt.Errorf("%s is open to others (mode %04o): chmod 600 it", path, info.Mode().Perm())
	}
	if err := unix.Flock(int(raw.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, h, nil, fmt.Errorf("%s is written by another gateway", path)
	} else if err != nil {
		return nil, h, nil, fmt.Errorf("lock %s: %w", path, err)
	}
	f = &file{File: raw, path: path, size: info.Size()}
	if f.size > 0 {
		f.first, f.firstAt, _ = firstLine(raw) // verify reports a changed line; it does not stop new ones
		if h, torn, err = lastLine(raw, f.size); err != nil {
			return nil, h, nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if h.seq == 0 { // the head is in the file before
		older, err := rotated(path)
		if err != nil {
			return nil, h, nil, err
		}
		if len(older) > 0 {
			if h, err = chainHeadOf(older[len(older)-1]); err != nil {
				return nil, h, nil, err
			}
		}
	}
	return f, h, torn, nil
}

func firstLine(f io.ReaderAt) (seq uint64, begun time.Time, err error) {
	buf := make([]byte, maxTail)
	n, err := f.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return 0, begun, err
	}
	line, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	e, _, _, err := readLine(line)
	return e.Seq, e.Time, err
}

// lastLine finds the last complete line of a file, and the bytes after it. Without a complete line the head is zero.
func lastLine(f io.ReaderAt, size int64) (h chainHead, torn []byte, err error) {
	from := max(0, size-maxTail)
	text := make([]byte, size-from)
	if _, err := f.ReadAt(text, from); err != nil && err != io.EOF {
		return h, nil, err
	}
	for end := len(text); end > 0; {
		nl := bytes.LastIndexByte(text[:end], '\n')
		if nl < 0 {
			break
		}
		start := bytes.LastIndexByte(text[:nl], '\n') + 1
		if _, h, _, err := readLine(text[start:nl]); err == nil {
			return h, text[nl+1:], nil
		}
		end = nl
	}
	if from > 0 {
		return h, nil, errors.New("no whole line at its end")
	}
	return chainHead{}, text, nil
}

// ReadHead returns the head of a log's last complete line: NUMBER:HASH.
func ReadHead(path string) (string, error) {
	files, err := Files(path)
	for i := len(files) - 1; i >= 0 && err == nil; i-- { // a new file is empty
		var h chainHead
		if h, err = chainHeadOf(files[i]); h.seq > 0 {
			return h.String(), nil
		}
	}
	return "", cmp.Or(err, fmt.Errorf("%s: no line in it", path))
}

func chainHeadOf(path string) (h chainHead, err error) {
	f, err := os.Open(path)
	if err != nil {
		return h, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return h, err
	}
	h, _, err = lastLine(f, info.Size())
	if err != nil {
		return h, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// String returns the written form of a head: NUMBER:HASH.
func (h chainHead) String() string { return fmt.Sprintf("%d:%s", h.seq, h.hash) }

// rotate renames the file and begins a new one. keep is how many old files stay; 0: all.
func (f *file) rotate(keep int) (*file, error) {
	aside := fmt.Sprintf("%s.%012d", f.path, f.first)
	if _, err := os.Lstat(aside); err == nil {
		return f, fmt.Errorf("%s is there already", aside)
	}
	if err := os.Rename(f.path, aside); err != nil {
		return f, err
	}
	raw, err := os.OpenFile(f.path, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = unix.Flock(int(raw.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil { // undo the rename, so that the lines are where a reader looks for them
		if raw != nil {
			raw.Close()
		}
		return f, errors.Join(err, os.Rename(aside, f.path))
	}
	err = errors.Join(f.Sync(), f.Close(), syncDir(filepath.Dir(f.path)))
	next := &file{File: raw, path: f.path}
	if keep > 0 {
		older, e := rotated(f.path)
		err = errors.Join(err, e)
		for _, name := range older[:max(0, len(older)-keep)] {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return next, err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ordered sorts files by the number of their first line.
func ordered(paths []string) ([]string, error) {
	type numbered struct {
		path string
		seq  uint64
	}
	var all []numbered
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return nil, err
		}
		seq, _, err := firstLine(f)
		f.Close()
		if n := len(p) - 13; err != nil && n > 0 && rotatedName.MatchString(p[n:]) { // the name has the number; the fault is reported with its line
			seq, _ = strconv.ParseUint(p[n+1:], 10, 64)
		}
		all = append(all, numbered{p, seq})
	}
	slices.SortStableFunc(all, func(a, b numbered) int {
		switch {
		case a.seq == b.seq:
			return 0
		case b.seq == 0 || a.seq != 0 && a.seq < b.seq: // a file without a line is the newest
			return -1
		}
		return 1
	})
	for i := range all {
		paths[i] = all[i].path
	}
	return paths, nil
}
