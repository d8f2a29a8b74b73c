package protocol

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// TestExecAnswerIsExecResult: what is written in pieces is byte for byte what the whole result is, whatever the texts are and however they are cut.
func TestExecAnswerIsExecResult(t *testing.T) {
	code := 3
	rnd := rand.New(rand.NewPCG(1, 2))
	texts := []string{"", "a", "\x01\x02\n\"\\</script>", "grüße, 世界 🙂\n", "\xff\xfe", "ends torn \xe4\xb8", strings.Repeat("x\x1b[0m ü", 5000), `"stdout":"","stderr":""`}
	for _, stdout := range texts {
		for _, stderr := range texts {
			a := ExecAnswer{ExecResult: ExecResult{ExecExit: ExecExit{ExecID: "x-1", ExitCode: &code, WorkingDir: `/tmp/"stdout":"","stderr":""`}, Truncated: true, Omitted: OmittedStreams{Stderr: &Omitted{At: 1, Bytes: 2}}}}
			a.SetTexts(cutUp(rnd, stdout), cutUp(rnd, stderr))
			r := a.Result()
			if text, encoding := EncodeBytes([]byte(stdout)); r.Stdout != text || r.StdoutEncoding != encoding {
				t.Fatalf("%.30q: %s", stdout, r.StdoutEncoding)
			}
			want, err := json.Marshal(&r, writing)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := WriteResult(&got, []byte("7"), &a); err != nil {
				t.Fatal(err)
			}
			if got.String() != `{"id":7,"ok":true,"data":`+string(want)+"}" {
				t.Fatalf("%.30q, %.30q: got\n%.300s\nwant\n%.300s", stdout, stderr, got.String(), want)
			}
		}
	}
}

func cutUp(rnd *rand.Rand, text string) (pieces Text) {
	for len(text) > 0 {
		n := 1 + rnd.IntN(min(len(text), 9000))
		if rnd.IntN(2) == 0 {
			n = min(len(text), 1+rnd.IntN(3))
		}
		pieces, text = append(pieces, []byte(text[:n])), text[n:]
		if rnd.IntN(4) == 0 {
			pieces = append(pieces, nil)
		}
		if len(text) > 20000 {
			pieces, text = append(pieces, []byte(text[:20000])), text[20000:]
		}
	}
	return pieces
}
