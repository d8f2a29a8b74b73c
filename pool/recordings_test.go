package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/pool/ids"
	"trl/pool/recording"
	"trl/protocol"
	"trl/runtime/cast"
	"trl/runtime/journal"
	"trl/runtime/stream"
)

// cassette is what a test knows of a recording: its events, by the format's own words.
type cassette struct {
	header cast.Header
	events []cast.Event
	text   string // of the file, as it is downloaded
}

func (c *cassette) of(code rune) (all []string) {
	for _, e := range c.events {
		if e.Code == code {
			all = append(all, e.Data)
		}
	}
	return all
}

func (c *cassette) output() string { return strings.Join(c.of(cast.Output), "") }

func (r *rig) cassette(id string) *cassette {
	r.t.Helper()
	rec, err := r.Recordings().Find(me, false, id)
	if err != nil {
		r.t.Fatal(err)
	}
	var b bytes.Buffer
	if err := rec.WriteTo(&b, false); err != nil {
		r.t.Fatal(err)
	}
	c := &cassette{text: b.String()}
	p, err := cast.NewReader(&b)
	if err != nil {
		r.t.Fatal(err)
	}
	c.header = p.Header
	for {
		e, err := p.Next()
		if err != nil {
			break
		}
		c.events = append(c.events, e)
	}
	return c
}

// ended waits for the end of a recording and returns it.
func (r *rig) ended(id string) (protocol.Recording, *cassette) {
	r.t.Helper()
	var info protocol.Recording
	testkit.Eventually(r.t, "the recording has ended", func() bool {
		rec, err := r.Recordings().Find(me, false, id)
		if err != nil {
			r.t.Fatal(err)
		}
		info = rec.Info()
		return info.State == "ended"
	})
	return info, r.cassette(id)
}

// diskBlock is what a recording takes of the disk at least.
const diskBlock = 4 << 10

func withRecordings(t testing.TB, c recording.Config) Config {
	c.Dir = filepath.Join(t.TempDir(), "state", "recordings")
	return Config{Record: c}
}

func openTerm(t testing.TB, s *Session, q protocol.TermOpen) *Terminal {
	t.Helper()
	q.Cols, q.Rows = 100, 30
	term, err := s.OpenTerminal(t.Context(), &q)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// shown waits until a terminal has printed something.
func shownBy(t testing.TB, term *Terminal, text string) {
	t.Helper()
	testkit.Eventually(t, text+" in the terminal", func() bool { return strings.Contains(string(journalText(t, term.Journal())), text) })
}

func journalText(t testing.TB, j *journal.Journal) (text []byte) {
	t.Helper()
	r, err := j.Attach(-1, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			return text
		}
		text = append(text, c.Data...)
	}
}

// TestATerminalIsRecorded: every byte, each size, the commands and the end; not what was typed, nor the environment.
func TestATerminalIsRecorded(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{Policy: "terminals"}))
	const hidden = "correct-horse-battery"
	s := r.create(protocol.SessionCreate{Shell: "/bin/bash", Name: "work", Env: protocol.Env{"API_TOKEN": of("secret-of-the-environment"), "PS1": of("> ")}})
	if s.Info().Record != "terminals" || s.Info().Recording != 0 {
		t.Fatalf("%+v", s.Info())
	}
	term := openTerm(t, s, protocol.TermOpen{})
	id := term.Info().RecordingID
	if id == "" || s.Info().Recording != 1 {
		t.Fatalf("nobody is told: %+v, %+v", term.Info(), s.Info())
	}
	keys := func(text string) {
		if _, err := term.Input(nil, stream.Anywhere, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	keys("echo fir''st; true日本\r")
	shownBy(t, term, "first")
	keys("stty -echo; echo list''ening; read -r x; stty echo; echo 'got it, '${#x}\r")
	shownBy(t, term, "listening\r\n")
	keys(hidden + "\r")
	shownBy(t, term, "got it, 21")
	if err := term.Resize(nil, 77, 20); err != nil {
		t.Fatal(err)
	}
	keys("stty size; exit 7\r")
	wait(t, "the terminal's end", term.Done())

	info, c := r.ended(id)
	if info.Reason != "exit" || info.ExitCode == nil || *info.ExitCode != 7 || info.TermID != term.ID() || info.SessionID != s.ID() || info.OutputBytes != term.Journal().Size() || info.Owner != me || info.Session != "work" {
		t.Errorf("%+v", info)
	}
	if c.header.Version != 3 || c.header.Cols != 100 || c.header.Rows != 30 || c.header.Title != "work" || c.header.Type != "xterm-256color" {
		t.Errorf("%+v", c.header)
	}
	if got, want := c.output(), string(bytes.ToValidUTF8(journalText(t, term.Journal()), []byte("\ufffd"))); got != want {
		t.Errorf("recorded\n%q\nprinted\n%q", got, want)
	}
	if got := c.of(cast.Mark); len(got) != 3 || got[0] != "echo fir''st; true日本" || !strings.HasPrefix(got[1], "stty -echo") || got[2] != "stty size; exit 7" {
		t.Errorf("marks %q", got)
	}
	if got := c.of(cast.Resize); !slices.Equal(got, []string{"77x20"}) {
		t.Errorf("sizes %q", got)
	}
	if last := c.events[len(c.events)-1]; last.Code != cast.Exit || last.Data != "7" {
		t.Errorf("at the end %+v", last)
	}
	for _, secret := range []string{hidden, "secret-of-the-environment", "API_TOKEN", me, "\n#"} {
		if strings.Contains(c.text, secret) {
			t.Errorf("%q is in the recording", secret)
		}
	}
	// A mark stands where its command's output begins: a player that jumps there shows what follows.
	for i, e := range c.events {
		if e.Code == cast.Mark && strings.HasPrefix(e.Data, "echo fir") && !strings.HasPrefix(c.events[i+1].Data, "first\r\n") {
			t.Errorf("after the mark comes %q", c.events[i+1].Data)
		}
	}
	if term.Info().RecordingID != "" || s.Info().Recording != 0 {
		t.Error("it is said to be recorded after its end")
	}
}

// TestACommandIsRecorded: both outputs in order, as a terminal would show them, told apart; nothing of what a job prints after the end.
func TestACommandIsRecorded(t *testing.T) {
	eachShell(t, func(t *testing.T, shell string) {
		r := newRig(t, withRecordings(t, recording.Config{}))
		s := r.create(protocol.SessionCreate{Shell: shell, Record: "execs"})
		fifo := filepath.Join(t.TempDir(), "go")
		step := fifo + "-on"
		want(t, s, "mkfifo "+fifo+" "+step, "")
		next, err := os.OpenFile(step, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		e := start(t, s, protocol.Exec{Command: "echo out; read x <" + step + "; echo err >&2; read x <" + step + "; printf 'a\\377b\\303\\251'; (read x <" + fifo + "; echo late) & exit 3"})
		for _, printed := range []string{"out\n", "err\n"} { // stdout and stderr are two pipes: only output that has been read has an order
			testkit.Eventually(t, printed, func() bool { return strings.HasSuffix(string(journalText(t, e.Journal())), printed) })
			if _, err := next.WriteString("\n"); err != nil {
				t.Fatal(err)
			}
		}
		wait(t, "the command", e.Done())
		info, c := r.ended(e.RecordingID())
		want(t, s, "echo >"+fifo, "")
		testkit.Eventually(t, "the job's output", func() bool { return strings.Contains(string(journalText(t, e.Journal())), "late") })
		if info.Reason != "exit" || *info.ExitCode != 3 || info.ExecID != e.ID() || !strings.HasPrefix(info.Command, "echo out") {
			t.Errorf("%+v", info)
		}
		if got := c.output(); got != "out\r\nerr\r\na\ufffdbé" {
			t.Errorf("%q", got)
		}
		for _, ev := range c.events {
			if ev.Code == cast.Output && ev.Stderr != strings.Contains(ev.Data, "err") {
				t.Errorf("%+v", ev)
			}
		}
		if got := c.of(cast.Exit); !slices.Equal(got, []string{"3"}) {
			t.Errorf("%q", got)
		}
		if list := r.Recordings().List(me, false, s.ID()); len(list) != 2+1 { // mkfifo, this one, echo
			t.Errorf("%d recordings", len(list))
		}
	})
}

// TestWhatIsRecorded: the policy, the session and the request each can only add.
func TestWhatIsRecorded(t *testing.T) {
	words := []string{"", "off", "terminals", "execs", "all"}
	terms := func(word string) bool { return word == "terminals" || word == "all" }
	execs := func(word string) bool { return word == "execs" || word == "all" }
	for _, policy := range words {
		r := newRig(t, withRecordings(t, recording.Config{Policy: policy}))
		for _, asked := range words {
			s := r.create(protocol.SessionCreate{Record: asked})
			for _, mine := range []bool{false, true} {
				name := fmt.Sprintf("policy %q, session %q, request %t", policy, asked, mine)
				e := start(t, s, protocol.Exec{Command: ":", Record: mine})
				wait(t, "the command", e.Done())
				if got := e.RecordingID() != ""; got != (execs(policy) || execs(asked) || mine) {
					t.Errorf("%s: command recorded: %t", name, got)
				}
				term := openTerm(t, s, protocol.TermOpen{Command: ":", Record: mine})
				wait(t, "the terminal", term.Done())
				if got := term.recorder != nil; got != (terms(policy) || terms(asked) || mine) {
					t.Errorf("%s: terminal recorded: %t", name, got)
				}
			}
			if err := s.Touch(); err != nil {
				t.Error(err)
			}
		}
	}
	r := newRig(t, Config{}) // no directory
	_, err := r.Create(t.Context(), me, &protocol.SessionCreate{Record: "all"})
	testkit.WantCode(t, err, protocol.NotSupported)
	s := r.create(protocol.SessionCreate{Record: "off"})
	_, err = s.Exec(&protocol.Exec{Command: ":", Record: true})
	testkit.WantCode(t, err, protocol.NotSupported)
	_, err = s.OpenTerminal(t.Context(), &protocol.TermOpen{Cols: 80, Rows: 24, Record: true})
	testkit.WantCode(t, err, protocol.NotSupported)
}

// TestARecordingIsBounded: it says where it ends, and what it is of goes on.
func TestARecordingIsBounded(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{MaxBytes: 100_000}))
	s := r.create(protocol.SessionCreate{})
	e := start(t, s, protocol.Exec{Command: "seq 100000; echo end", Record: true, MaxOutputBytes: of[int64](1 << 20)})
	wait(t, "the command", e.Done())
	if res := e.Result(false); !strings.HasSuffix(res.Stdout, "\n100000\nend\n") || res.Truncated {
		t.Error("the command was disturbed")
	}
	info, c := r.ended(e.RecordingID())
	if info.Reason != "full" || info.SizeBytes > 100_000+1000 {
		t.Errorf("%+v", info)
	}
	var whole strings.Builder
	for n := range 100_000 {
		fmt.Fprintf(&whole, "%d\r\n", n+1)
	}
	if got := c.output(); !strings.HasPrefix(whole.String(), got) {
		t.Errorf("%d bytes that are no beginning", len(got))
	}
	if marks := c.of(cast.Mark); len(marks) != 1 || !strings.Contains(marks[0], "ends here (full)") {
		t.Errorf("%q", marks)
	}
}

// TestWhoHasMostMakesRoom: nobody pushes out the few recordings of another by many or large ones, and what the policy demanded goes last.
func TestWhoHasMostMakesRoom(t *testing.T) {
	for name, loud := range map[string]string{"many": "echo x", "large": "head -c 20000 /dev/zero | tr '\\0' x"} {
		r := newRig(t, withRecordings(t, recording.Config{Policy: "execs", TotalBytes: 20 * diskBlock}))
		sessions := map[string]*Session{}
		recorded := func(who, command string) (id string) {
			s := sessions[who]
			if s == nil {
				var err error
				if s, err = r.Create(t.Context(), who, &protocol.SessionCreate{}); err != nil {
					t.Fatal(err)
				}
				sessions[who] = s
			}
			e := start(t, s, protocol.Exec{Command: command})
			wait(t, "the command", e.Done())
			testkit.Eventually(t, "the recording has ended", func() bool { return r.recordings.HasEnded(e.RecordingID()) })
			return e.RecordingID()
		}
		there := func(who, id string) bool {
			_, err := r.Recordings().Find(who, false, id)
			return err == nil
		}
		few := recorded("few", "echo evidence")
		term := openTerm(t, sessions["few"], protocol.TermOpen{Command: "echo wish", Record: true})
		wait(t, "the terminal", term.Done())
		testkit.Eventually(t, "the recording has ended", func() bool { return r.recordings.HasEnded(term.recording) })
		var ids []string
		for range 25 {
			ids = append(ids, recorded("loud", loud))
		}
		if !there("few", few) {
			t.Errorf("%s: another's recording was pushed out", name)
		}
		if there("few", term.recording) {
			t.Errorf("%s: what nobody demanded stayed while room was needed", name)
		}
		if there("loud", ids[0]) || !there("loud", ids[24]) {
			t.Errorf("%s: not the oldest went", name)
		}
	}
}

// TestOldRecordingsMakeRoom: the oldest that ended go first, and one that is being written is never removed.
func TestOldRecordingsMakeRoom(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{TotalBytes: 10 * diskBlock}))
	s := r.create(protocol.SessionCreate{Record: "all"})
	long := openTerm(t, s, protocol.TermOpen{Command: "cat"})
	var ids []string
	for n := range 15 {
		e := start(t, s, protocol.Exec{Command: fmt.Sprintf("echo %d", n)})
		wait(t, "the command", e.Done())
		r.ended(e.RecordingID())
		ids = append(ids, e.RecordingID())
	}
	list := r.Recordings().List(me, false, "")
	if len(list) != 10 || list[0].TermID != long.ID() || list[0].State != "recording" {
		t.Fatalf("%d kept, the first: %+v", len(list), list[0])
	}
	for i, info := range list[1:] {
		if info.RecordingID != ids[len(ids)-9+i] {
			t.Errorf("kept the wrong ones")
		}
	}
	files, err := os.ReadDir(r.config.Load().Record.Dir)
	if err != nil || len(files) != 10 {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	if info, err := os.Stat(r.config.Load().Record.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	// More is written at one time than there is room for: that one ends, and says why.
	e := start(t, s, protocol.Exec{Command: "seq 100000"})
	wait(t, "the command", e.Done())
	if info, c := r.ended(e.RecordingID()); info.Reason != "no_room" || !strings.Contains(c.of(cast.Mark)[0], "no_room") {
		t.Errorf("%+v", info)
	}
}

func TestRecordingsAreKeptForATime(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{Policy: "all", Keep: time.Hour}))
	s := r.create(protocol.SessionCreate{})
	e := start(t, s, protocol.Exec{Command: ":"})
	wait(t, "the command", e.Done())
	r.ended(e.RecordingID())
	term := openTerm(t, s, protocol.TermOpen{Command: "cat"})
	r.DropExpired(time.Now().Add(59 * time.Minute))
	if n := len(r.Recordings().List(me, false, "")); n != 2 {
		t.Fatalf("%d after 59 minutes", n)
	}
	r.DropExpired(time.Now().Add(61 * time.Minute))
	if list := r.Recordings().List(me, false, ""); len(list) != 1 || list[0].TermID != term.ID() {
		t.Fatalf("after an hour %+v", list)
	}
}

// TestNoDiskNoHarm: where nothing can be written the command is not disturbed, and it is counted.
func TestNoDiskNoHarm(t *testing.T) {
	c := withRecordings(t, recording.Config{Policy: "all"})
	c.Record.Dir = filepath.Join(t.TempDir(), "file", "recordings") // below a file: nobody can make that, root neither
	if err := os.WriteFile(filepath.Dir(c.Record.Dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, c)
	s := r.create(protocol.SessionCreate{})
	want(t, s, "echo fine", "fine\n")
	term := openTerm(t, s, protocol.TermOpen{Command: "echo fine, too; exit 5"})
	wait(t, "the terminal", term.Done())
	if info := term.Info(); *info.ExitCode != 5 || !strings.Contains(string(journalText(t, term.Journal())), "fine, too") {
		t.Errorf("%+v", info)
	}
	failed := r.metrics.RecordingsEnded.WithLabelValues(metrics.RecordingFailed)
	testkit.Eventually(t, "both are counted", func() bool { return testutil.ToFloat64(failed) == 2 })
	if n := len(r.Recordings().List(me, false, "")); n != 0 || r.recordings.OpenCount() != 0 {
		t.Errorf("%d recordings that nobody has", n)
	}
}

// TestOthersRecordings: they do not exist, but for an admin.
func TestOthersRecordings(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{Policy: "execs"}))
	s := r.create(protocol.SessionCreate{})
	e := start(t, s, protocol.Exec{Command: ":"})
	wait(t, "the command", e.Done())
	r.ended(e.RecordingID())
	_, err := r.Recordings().Find("other", false, e.RecordingID())
	_, none := r.Recordings().Find("other", false, "r-none")
	if testkit.WantCode(t, err, protocol.RecordingNotFound).Error() != testkit.WantCode(t, none, protocol.RecordingNotFound).Error() {
		t.Errorf("%v tells it from %v", err, none)
	}
	if list := r.Recordings().List("other", false, s.ID()); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if list := r.Recordings().List("other", true, ""); len(list) != 1 {
		t.Errorf("an admin sees %+v", list)
	}
	mine, err := r.Recordings().Find(me, false, e.RecordingID())
	if err != nil {
		t.Fatal(err)
	}
	testkit.WantCode(t, mine.Delete(false), protocol.Forbidden) // the policy demands it
	if err := mine.Delete(true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.recordings.Path(e.RecordingID())); !os.IsNotExist(err) {
		t.Error("the file is there")
	}
}

// TestDeletedMeansGone: a recording whose file cannot be removed is not said to be, is still there, and keeps no other from making room.
func TestDeletedMeansGone(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{TotalBytes: 4 * diskBlock}))
	s := r.create(protocol.SessionCreate{Record: "execs"})
	record := func() *recording.Recording {
		e := start(t, s, protocol.Exec{Command: "echo kept"})
		wait(t, "the command", e.Done())
		r.ended(e.RecordingID())
		rec, err := r.Recordings().Find(me, false, e.RecordingID())
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	rec := record()
	id, path := rec.Info().RecordingID, r.recordings.Path(rec.Info().RecordingID)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// What nobody can remove, root neither: a directory with something in it.
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	testkit.WantCode(t, rec.Delete(false), protocol.InternalError)
	for range 6 {
		record()
	}
	if list := r.Recordings().List(me, false, ""); len(list) != 4 || list[0].RecordingID != id {
		t.Errorf("%d recordings, the first %+v", len(list), list[0])
	}
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := rec.Delete(false); err != nil {
		t.Error(err)
	}
	if _, err := r.Recordings().Find(me, false, id); err == nil {
		t.Error("it is there")
	}
}

// TestDeleteWhileRecording ends the recording and nothing else.
func TestDeleteWhileRecording(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{}))
	s := r.create(protocol.SessionCreate{Record: "terminals"})
	term := openTerm(t, s, protocol.TermOpen{Command: "echo here; cat"})
	shownBy(t, term, "here")
	rec, err := r.Recordings().Find(me, false, term.Info().RecordingID)
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Delete(false); err != nil {
		t.Fatal(err)
	}
	if _, err := term.Input(nil, stream.Anywhere, []byte("still\r")); err != nil {
		t.Fatal(err)
	}
	shownBy(t, term, "still")
	if files, _ := os.ReadDir(r.config.Load().Record.Dir); len(files) != 0 || len(r.Recordings().List(me, false, "")) != 0 || term.Info().RecordingID != "" {
		t.Errorf("%d files, %+v", len(files), term.Info())
	}
}

// TestWhatIsMissedIsTold: a recorder that comes too late says what it has not seen, and never holds up who writes.
func TestWhatIsMissedIsTold(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{}))
	j := journal.New(64 << 10)
	line := []byte("0123456789abcde\n")
	const lines = 1 << 16
	for range lines { // a mebibyte, of which the ring has the last 128 KiB
		j.Write(journal.Stdout, line)
	}
	id := ids.New("", 'r', r.epoch, "tagtag", ids.MemberLen)
	rec := r.recordings.Start(recording.Source{Notes: recording.Notes{ID: id, Owner: me, Member: "x-"}, Header: cast.Header{Cols: 80, Rows: 24}, Journal: j, OnDelete: func() {}})
	if !j.Room() {
		t.Error("the recorder holds up the writer")
	}
	gone := j.Start()
	status := 0
	j.Close()
	rec.Finish(j.Size(), &status)
	info, c := r.ended(id)
	if got := c.of(cast.Mark); len(got) != 1 || got[0] != fmt.Sprintf("trl: %d bytes of output are missing here", gone) {
		t.Errorf("marks %q, %d are gone", got, gone)
	}
	if got := strings.ReplaceAll(c.output(), "\r", ""); int64(len(got)) != j.Size()-gone || strings.Trim(got, string(line)) != "" {
		t.Errorf("%d bytes recorded, %d kept", len(got), j.Size()-gone)
	}
	if info.OutputBytes != lines*int64(len(line)) {
		t.Errorf("%+v", info)
	}
}

// TestARecordingEndsWithItsCommand: what jobs print after that is not the command's.
func TestARecordingEndsWithItsCommand(t *testing.T) {
	r := newRig(t, withRecordings(t, recording.Config{}))
	j := journal.New(64 << 10)
	id := ids.New("", 'r', r.epoch, "tagtag", ids.MemberLen)
	rec := r.recordings.Start(recording.Source{Notes: recording.Notes{ID: id, Owner: me, Member: "x-"}, Header: cast.Header{Cols: 80, Rows: 24}, Journal: j, OnDelete: func() {}})
	j.Write(journal.Stdout, []byte("its own"))
	rec.SetEnd(j.Size())
	j.Write(journal.Stdout, []byte(", the job's"))
	rec.Finish(7, nil)
	if c := r.cassette(id); c.output() != "its own" { // who reads it at once gets all of it
		t.Errorf("recorded %q", c.output())
	}
	if _, c := r.ended(id); c.output() != "its own" {
		t.Errorf("recorded %q", c.output())
	}
	j.Close()
}

// TestRecordingsOutliveTheGateway: another one finds them, ends what nobody goes on with, and leaves alone what is not ours.
func TestRecordingsOutliveTheGateway(t *testing.T) {
	c := withRecordings(t, recording.Config{Policy: "execs"})
	r := newRig(t, c)
	s := r.create(protocol.SessionCreate{Name: "../ü b.c/"})
	e := start(t, s, protocol.Exec{Command: "echo kept"})
	wait(t, "the command", e.Done())
	before, _ := r.ended(e.RecordingID())
	path := r.recordings.Path(e.RecordingID())
	ctx, cancel := context.WithTimeout(context.Background(), generous)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	// What a gateway that was killed in the middle of a write leaves.
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	id := ids.New("", 'r', r.epoch, "tagtag", ids.MemberLen)
	cut := strings.Replace(string(text[:bytes.LastIndex(text, []byte(`, "x", `))]), e.RecordingID(), id, 1)
	if err := os.WriteFile(filepath.Join(c.Record.Dir, id+".cast"), []byte(cut), 0o600); err != nil {
		t.Fatal(err)
	}
	// What nobody could have left but with an editor: each of these ids is taken apart later, or is whom it belongs to.
	bad := 0
	for _, id := range []string{s.ID(), e.ID(), me} {
		for _, not := range []string{"", "x", strings.ToUpper(id)} {
			if id == me && not != "" {
				continue // anybody's name may be one
			}
			mine := ids.New("", 'r', r.epoch, "tagtag", ids.MemberLen)
			wrong := strings.NewReplacer(e.RecordingID(), mine, strconv.Quote(id), strconv.Quote(not)).Replace(string(text))
			if err := os.WriteFile(filepath.Join(c.Record.Dir, mine+".cast"), []byte(wrong), 0o600); err != nil {
				t.Fatal(err)
			}
			bad++
		}
	}
	foreign := filepath.Join(c.Record.Dir, "mine.cast")
	if err := os.WriteFile(foreign, text, 0o600); err != nil {
		t.Fatal(err)
	}

	r = newRig(t, c)
	if after, tape := r.ended(e.RecordingID()); tape.output() != "kept\r\n" || !sameJSON(after, before) {
		t.Errorf("%+v, was %+v", after, before)
	}
	if info, tape := r.ended(id); info.Reason != "lost" || len(tape.of(cast.Mark)) != 1 {
		t.Errorf("%+v, %q", info, tape.text)
	}
	if len(r.Recordings().List(me, false, "")) != 2 {
		t.Error("not two")
	}
	rec, err := r.Recordings().Find(me, false, id)
	if err != nil {
		t.Fatal(err)
	}
	if name := rec.FileName(); !strings.HasPrefix(name, "b.c-2") && !strings.HasPrefix(name, "--b.c-2") || strings.ContainsAny(name, "/\"\\ ") {
		t.Errorf("file name %q", name)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(c.Record.Dir); err != nil || len(files) != 2+bad+1 {
		t.Errorf("%d files, %v: what cannot be read is left alone", len(files), err)
	}
}

func sameJSON(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}
