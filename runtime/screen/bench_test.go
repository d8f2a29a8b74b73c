package screen

import (
	"bytes"
	"fmt"
	"testing"
)

// floods are sequences that an emulator may take long for, and plain lines.
var floods = map[string]string{
	"lines": "y\r\n", "long": "The quick brown fox jumps over the lazy dog, once more and again.\r\n", "colours": "\x1b[31mabcdefghij\x1b[0m",
	"wide": "日本語", "combining": "e\u0301", "repeat": "x\x1b[1000b", "repeat wide": "日\x1b[1000b", "insert lines": "x\x1b[L", "delete lines": "\x1b[M", "erase": "x\x1b[2J",
	"erase below": "x\x1b[2H\x1b[J", "insert": "x\x1b[@", "delete": "x\x1b[P", "scroll": "\x1b[999S", "reverse": "\x1bM", "region": "\x1b[2;9r\x1b[9H\n",
	"reset": "x\x1bc", "alternate": "\x1b[?1049hx\x1b[?1049l", "picture": "\x1b#8x", "far": "\x1b[2K\x1b[999Gx", "insert mode": "\x1b[4hx\r",
	"links": "\x1b]8;;http://a/\x1b\\x\x1b]8;;\x1b\\",
}

// BenchmarkScreen: beside it, copying the same bytes.
func BenchmarkScreen(b *testing.B) {
	for _, size := range [][2]int{{80, 24}, {200, 50}, {1000, 1000}} {
		for name, flood := range floods {
			p := bytes.Repeat([]byte(flood), (64<<10)/len(flood))
			b.Run(fmt.Sprintf("%dx%d/%s", size[0], size[1], name), func(b *testing.B) {
				s := New(size[0], size[1])
				_, _ = s.Write([]byte("\x1b[?1049h"))
				b.SetBytes(int64(len(p)))
				for b.Loop() {
					_, _ = s.Write(p)
				}
			})
		}
	}
	b.Run("copy", func(b *testing.B) {
		p := bytes.Repeat([]byte("y\r\n"), (64<<10)/3)
		q := make([]byte, len(p))
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			copy(q, p)
		}
	})
}
