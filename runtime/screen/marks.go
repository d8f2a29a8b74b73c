package screen

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Command is one command that a shell in the terminal ran, as its marks report it.
type Command struct {
	Text        string        // "" if the shell did not report it
	Code        *int          // nil if the shell did not report it
	Duration    time.Duration // negative if we did not see its start
	Offset, End int64         // its output in the stream
}

// Marks finds the marks by which the terminal's shell reports its commands: OSC 133 C and D with aid=NONCE, and OSC 633 E with the nonce at its end. A
// mark without the nonce is not from our shell. Marks is not an emulator: it looks for the escape character and reads little after it, so it can see
// every byte that a terminal prints. A journal's Tap feeds it, and the terminal's owner reads it.
type Marks struct {
	nonce string                       // set once
	begin func(text string, end int64) // set once, by OnBegin; nil: nobody is told

	mu     sync.Mutex
	live   bool // guarded by mu; bytes are current, and ended commands are reported
	size   int64
	state  int    // guarded by mu; of the scan
	seq    []byte // guarded by mu; the current sequence, without its introducer
	at     int64  // guarded by mu; the offset where it began
	text   string // guarded by mu; the text of the next command
	begun  *Command
	since  time.Time // guarded by mu; when the command began; zero if unknown
	marked bool      // guarded by mu; the shell has shown a mark
	ended  []Command // guarded by mu; not taken yet
	alt    bool      // guarded by mu; the alternate screen is shown
	altAt  int64     // guarded by mu; the offset of the sequence that showed it
}

// States of the scan.
const (
	ground  = iota
	escaped // after ESC
	csi     // in a control sequence
	osc     // in an operating system command
	oscEsc  // in one, after ESC
	str     // in another string: DCS, SOS, PM, APC
	strEsc
)

const (
	// maxSeq bounds a mark: the text of a command, four times as long as what people type.
	maxSeq = 16 << 10
	// maxModes bounds the parameters of a sequence that sets modes; longer ones are ignored.
	maxModes = 64
	// maxEnded bounds the ended commands that nobody has taken.
	maxEnded = 256
)

// NewMarks finds the marks with a nonce. Until Live, everything that it sees is history.
func NewMarks(nonce string) *Marks { return &Marks{nonce: nonce} }

// OnBegin sets the function that is called, within Write, for each command that begins, with its text and the start of its output. Call it before use.
func (m *Marks) OnBegin(f func(text string, end int64)) { m.begin = f }

// Live says that later bytes are current.
func (m *Marks) Live() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live, m.ended = true, nil
}

// Skip counts bytes that nobody has any more.
func (m *Marks) Skip(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.size += n
	m.state = ground
}

// Write reads the next bytes and reports whether a command ended in them.
func (m *Marks) Write(p []byte) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	had := len(m.ended)
	for i := 0; i < len(p); {
		switch m.state {
		case ground:
			n := bytes.IndexByte(p[i:], 0x1b)
			if n < 0 {
				i = len(p)
				continue
			}
			i += n + 1
			m.state, m.at = escaped, m.size+int64(i)-1
			continue
		case escaped:
			switch p[i] {
			case ']':
				m.state, m.seq = osc, m.seq[:0]
			case '[':
				m.state, m.seq = csi, m.seq[:0]
			case 'c': // a reset
				m.state, m.alt = ground, false
			case 'P', 'X', '^', '_':
				m.state = str
			case 0x1b:
				m.at = m.size + int64(i)
			default:
				m.state = ground
			}
		case csi:
			switch c := p[i]; {
			case c == 0x1b:
				m.state = escaped
			case c >= 0x40 && c <= 0x7e:
				m.mode(c)
				m.state = ground
			case len(m.seq) < maxModes:
				m.seq = append(m.seq, c)
			}
		case osc, str:
			n := bytes.IndexAny(p[i:], "\x07\x1b\x18\x1a")
			if n < 0 {
				n = len(p) - i
			}
			if m.state == osc {
				m.seq = append(m.seq, p[i:i+min(n, maxSeq+1-min(len(m.seq), maxSeq+1))]...)
			}
			i += n
			if i == len(p) {
				continue
			}
			switch {
			case p[i] == 0x1b:
				m.state++
			case m.state == osc && p[i] == 0x07:
				m.mark(m.size + int64(i) + 1)
				m.state = ground
			case m.state == osc || p[i] != 0x07: // cancelled; in other strings a BEL is an ordinary byte
				m.state = ground
			}
		case oscEsc, strEsc:
			if p[i] == '\\' && m.state == oscEsc {
				m.mark(m.size + int64(i) + 1)
			}
			if m.state = ground; p[i] != '\\' {
				m.state, m.at = escaped, m.size+int64(i)-1 // the string was broken off by another sequence
				continue
			}
		}
		i++
	}
	m.size += int64(len(p))
	return m.live && len(m.ended) > had
}

// mode checks a complete control sequence for the alternate screen.
func (m *Marks) mode(final byte) {
	if final != 'h' && final != 'l' || len(m.seq) < 3 || m.seq[0] != '?' {
		return
	}
	for n := range strings.SplitSeq(string(m.seq[1:]), ";") {
		if n == "47" || n == "1047" || n == "1049" {
			if !m.alt {
				m.altAt = m.at
			}
			m.alt = final == 'h'
		}
	}
}

// Alternate reports whether the alternate screen is shown.
func (m *Marks) Alternate() bool {
	_, on := m.AlternateSince()
	return on
}

// AlternateSince reports whether the alternate screen is shown, and the offset of the sequence that showed it.
func (m *Marks) AlternateSince() (since int64, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.altAt, m.alt
}

// mark reads a complete OSC, which ends at end.
func (m *Marks) mark(end int64) {
	if len(m.seq) > maxSeq {
		return
	}
	text, ours := strings.CutPrefix(string(m.seq), "633;E;")
	if ours {
		if text, ours = strings.CutSuffix(text, ";"+m.nonce); ours {
			m.text = unescape(text)
		}
		return
	}
	fields := strings.Split(string(m.seq), ";")
	if len(fields) < 3 || fields[0] != "133" || fields[len(fields)-1] != "aid="+m.nonce {
		return
	}
	m.marked = true
	switch fields[1] {
	case "C":
		if m.begin != nil {
			m.begin(m.text, end)
		}
		m.begun, m.text, m.since = &Command{Text: m.text, Offset: end, Duration: -1}, "", time.Time{}
		if m.live {
			m.since = time.Now()
		}
	case "D":
		c := m.begun
		if m.begun = nil; c == nil {
			return
		}
		c.End = m.at
		if !m.since.IsZero() {
			c.Duration = time.Since(m.since)
		}
		if code, err := strconv.Atoi(fields[2]); err == nil {
			c.Code = &code
		}
		if m.ended = append(m.ended, *c); len(m.ended) > maxEnded {
			m.ended = m.ended[1:]
		}
	case "A": // a prompt without an end: the command was never one
		m.begun, m.text = nil, ""
	}
}

// Running returns the text of the running command and when it began (zero: unknown). A nil text means that the shell waits at its prompt. ok is false
// while the terminal has not shown a mark.
func (m *Marks) Running() (text *string, since time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun == nil {
		return nil, time.Time{}, m.marked
	}
	return &m.begun.Text, m.since, true
}

// Take returns the commands that have ended since the last call.
func (m *Marks) Take() []Command {
	m.mu.Lock()
	defer m.mu.Unlock()
	ended := m.ended
	m.ended = nil
	return ended
}

// unescape reads \\ and \xHH.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			if s[i+1] == '\\' {
				b.WriteByte('\\')
				i++
				continue
			}
			if s[i+1] == 'x' && i+3 < len(s) {
				if n, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
					b.WriteByte(byte(n))
					i += 3
					continue
				}
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
