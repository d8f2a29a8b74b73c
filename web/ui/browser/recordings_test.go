package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"
)

const (
	tape     = `trl.tabs.current.tape`
	played   = `(() => { const b = trl.tabs.current.xterm.buffer.active; return Array.from({length: b.length}, (_, y) => b.getLine(y)?.translateToString(true) ?? "").join("\n").trim() })()`
	tapeRow  = `document.querySelector(".recordings tbody tr")`
	recorded = `trl.tabs.current.element.querySelector(".pane-bar .rec-dot")`
)

// TestARecordingIsPlayed: a recorded terminal says that it is recorded. The player shows the screen that the terminal had at each position.
func TestARecordingIsPlayed(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	if eval[bool](p, "!!"+recorded) || eval[bool](p, `!!document.querySelector(".session .rec:not([hidden])")`) {
		t.Error("the page says that a terminal is recorded that is not")
	}
	p.run(`trl.choose({record: true})`)
	p.run(`trl.workspace.newTerminal(trl.tabs.current.session)`)
	p.until("the second terminal is open", `trl.tabs.views.length === 2 && trl.tabs.current === trl.tabs.views[1]`)
	p.prompt()
	p.until("the red dots are shown", recorded+` && document.querySelector(".session .rec:not([hidden])")`)
	p.command("echo first")
	p.command("printf 'caf\\303\\251 \\033[31mred\\033[0m\\n'; false")
	p.command("echo third")
	shown := eval[string](p, played)
	p.enter("exit")
	p.until("the terminal has ended", `trl.tabs.current.terminal.over`)
	p.until("no red dot is shown", `!`+recorded+` && !document.querySelector(".session .rec:not([hidden])")`)

	p.do(chromedp.Click(`.topbar-tools button[aria-label="Recordings"]`, chromedp.ByQuery))
	p.until("the recording is listed with its end", `/exit/.test(`+tapeRow+`?.textContent) && /web-1/.test(`+tapeRow+`.textContent)`)
	p.run(tapeRow + `.querySelector("button").click()`)
	p.until("the player has the recording", `trl.tabs.current.key.startsWith("play/") && `+tape+`?.length > 0`)
	if shown, at := eval[string](p, played), eval[float64](p, tape+`.position`); at != 0 || strings.Contains(shown, "third") {
		t.Errorf("the recording begins at %v with %q", at, shown)
	}
	if n := eval[int](p, tape+`.cast.marks.length`); n != 4 {
		t.Errorf("%d marks, want 4: three commands and exit", n)
	}

	// At the end there is what was there, and back again each place is what it was.
	p.key("End", "End")
	p.until("the player is at the end", tape+`.over`)
	p.until("the player has drawn everything", `/third\n/.test(`+played+`)`)
	if got := eval[string](p, played); !strings.HasPrefix(got, shown) {
		t.Errorf("the player shows\n%s\nthe terminal showed\n%s", got, shown)
	}
	p.key("Home", "Home")
	p.until("the player is at the beginning", tape+`.position === 0 && !/third/.test(`+played+`)`)
	p.key("]", "BracketRight")
	p.until("the player is at the first command", tape+`.mark?.label === "echo first"`)
	p.key("]", "BracketRight")
	p.until("the player is at the second command", `/printf/.test(`+tape+`.mark?.label) && /first/.test(`+played+`) && !/café/.test(`+played+`)`)
	p.key(".", "Period")
	p.until("the player has drawn one more output", `/café red/.test(`+played+`)`)
	p.key("[", "BracketLeft")
	p.until("the player is at the mark before", `!/third/.test(`+played+`)`)
	p.run(`(() => { const s = document.querySelector(".player-marks"); s.value = "2"; s.dispatchEvent(new Event("change")); })()`)
	p.until("the list of commands moves the player", tape+`.mark?.label === "echo third"`)
	p.run(`(() => { const b = document.querySelector(".player-bar"); b.value = 0; b.dispatchEvent(new Event("input")); })()`)
	p.until("the seek bar moves the player", tape+`.position === 0`)

	// It plays, at its pace; faster when asked to.
	p.run(`(() => { const s = document.querySelector(".player-controls select"); s.value = "8"; s.dispatchEvent(new Event("change")); })()`)
	p.run(`document.querySelector(".player-frame").focus()`)
	// Noted in the page: the recording may be over before we look.
	p.run(`new MutationObserver(() => trl.played ||= ` + tape + `.playing && document.querySelector('.player-controls button[aria-label="Stop"]')).observe(document.querySelector(".player-controls"), {subtree: true, attributes: true})`)
	p.key(" ", "Space")
	p.until("the player plays", `trl.played`)
	p.until("the player has played to the end", `!`+tape+`.playing && `+tape+`.over && /third/.test(`+played+`)`)
	if words := eval[string](p, `document.querySelector(".player-bar").getAttribute("aria-valuetext")`); !strings.Contains(words, " of ") {
		t.Errorf("the seek bar's text for screen readers is %q", words)
	}

	// The address is one; so are the downloads.
	address := eval[string](p, `location.hash`)
	q := p.another("/" + address)
	q.until("the other tab shows the recording", tape+`?.length > 0`)
	dir := t.TempDir()
	p.do(cdpbrowser.SetDownloadBehavior(cdpbrowser.SetDownloadBehaviorBehaviorAllow).WithDownloadPath(dir).WithBrowserContextID(p.profile))
	for n, version := range map[int]string{0: `{"version":3,`, 1: `{"version":2,`} {
		p.run(fmt.Sprintf(`trl.tabs.current.element.querySelectorAll("a[download]")[%d].click()`, n))
		var text []byte
		for end := time.Now().Add(patience); !strings.HasPrefix(string(text), version); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no download begins with %s", version)
			}
			files, _ := filepath.Glob(filepath.Join(dir, "web-1-*.cast"))
			for _, file := range files {
				text, _ = os.ReadFile(file)
				os.Remove(file)
			}
		}
	}

	p.run(`trl.workspace.openRecordings()`)
	p.until("the recordings are listed", tapeRow)
	p.run(tapeRow + `.querySelector('button[aria-label="Remove the recording"]').click()`)
	p.until("the page asks before it removes the recording", `document.querySelector("dialog")`)
	p.do(chromedp.Click(`dialog button[value=yes]`, chromedp.ByQuery))
	p.until("the recording is gone", `document.querySelector(".recordings").hidden && /No recordings/.test(document.querySelector(".stage .empty").textContent)`)
}

// TestSizesArePlayed: a recording has the size that the terminal had at each time. The player shows a recording in progress as far as it goes.
func TestSizesArePlayed(t *testing.T) {
	t.Parallel()
	g := serve(t, "--record", "terminals")
	p := g.open()
	p.newTerminal()
	p.until("the policy records the terminal", recorded)
	before := eval[[]int](p, `[trl.tabs.current.xterm.cols, trl.tabs.current.xterm.rows]`)
	p.command("echo small now")
	p.do(chromedp.EmulateViewport(820, 600))
	p.until("the terminal is smaller", fmt.Sprintf(`trl.tabs.current.xterm.cols < %d && trl.tabs.current.terminal.actual.cols === trl.tabs.current.xterm.cols`, before[0]))
	p.command("stty size")
	after := eval[[]int](p, `[trl.tabs.current.xterm.cols, trl.tabs.current.xterm.rows]`)
	p.run(`trl.workspace.openRecordings(trl.tabs.current.session)`)
	p.until("the recording is in progress", `/recording/.test(`+tapeRow+`?.textContent)`)
	p.run(tapeRow + `.querySelector("button").click()`)
	p.until("the player is open", tape+`?.length > 0`)
	const size = `[trl.tabs.current.xterm.cols, trl.tabs.current.xterm.rows].join()`
	p.until("the player has the size of the beginning", fmt.Sprintf(`%s === "%d,%d"`, size, before[0], before[1]))
	p.run(tape + `.seek(1e9)`)
	p.until("the player has the size of the end", fmt.Sprintf(`%s === "%d,%d"`, size, after[0], after[1]))
	p.until("the player says that the recording is in progress", `/being recorded/.test(trl.tabs.current.element.textContent)`)
	p.run(`trl.tabs.select(trl.tabs.views[0])`)
	p.prompt()
	p.command("echo ad''ded")
	p.run(`trl.tabs.select(trl.tabs.views[2])`)
	for end := time.Now().Add(patience); ; {
		p.run(`trl.tabs.current.element.querySelector(".readout button").click()`)
		p.until("the recording is loaded again", tape)
		p.run(tape + `.seek(1e9)`)
		if eval[bool](p, `new Promise((then) => setTimeout(() => then(/added/.test(`+played+`)), 200))`) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the later output is missing")
		}
	}
}
