package journal

import (
	"context"
	"testing"
)

// TestNotesComeAfterWhatWasWrittenBefore: attached readers get notes in order, after the earlier bytes, and a note does not delay bytes.
func TestNotesComeAfterWhatWasWrittenBefore(t *testing.T) {
	j := New(1 << 10)
	j.Note("nobody is there")
	r, err := j.Attach(0, Options{Max: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	j.Write(TTY, []byte("abcdef"))
	j.Note(1)
	j.Note(2)
	j.Write(TTY, []byte("gh"))
	if !r.Behind(6) {
		t.Error("nothing is due")
	}
	var got []any
	text := ""
	for len(got) < 2 || text != "abcdefgh" {
		c, err := r.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if c.Note != nil {
			if got = append(got, c.Note); text != "abcd"+"efgh" && text != "abcdef" {
				t.Errorf("%v came after %q", c.Note, text)
			}
			continue
		}
		text += string(c.Data)
	}
	if got[0] != 1 || got[1] != 2 {
		t.Errorf("%v", got)
	}
	j.Note("last")
	j.Close()
	if c, err := r.Next(context.Background()); err != nil || c.Note != "last" {
		t.Errorf("%+v %v", c, err)
	}
	if r.Behind(8) {
		t.Error("something is due")
	}
}

// TestSkipGoesForwardOnly: a reader skips to the point of the screen that shows the result of the skipped bytes.
func TestSkipGoesForwardOnly(t *testing.T) {
	j := New(1 << 10)
	r, err := j.Attach(0, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	j.Write(TTY, []byte("0123456789"))
	for _, to := range []int64{6, 3} {
		r.Skip(to)
		if r.Offset() != 6 {
			t.Errorf("at %d", r.Offset())
		}
	}
	if c, ok, _ := r.TryNext(); !ok || string(c.Data) != "6789" {
		t.Errorf("%+v", c)
	}
	r.Skip(1000)
	if r.Offset() != 10 {
		t.Errorf("at %d, beyond the end", r.Offset())
	}
}
