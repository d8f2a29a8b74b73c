package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// phone opens the page on a touch screen, with a terminal.
func (g *gateway) phone() *page {
	g.t.Helper()
	p := g.open(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch))
	p.do(chromedp.Click(`.welcome .primary`, chromedp.ByQuery))
	p.until("a terminal is open", `trl.tabs.current?.xterm`)
	p.prompt()
	return p
}

func (p *page) touch(kind input.TouchType, at ...float64) {
	p.t.Helper()
	points := []*input.TouchPoint{}
	if len(at) == 2 {
		points = append(points, &input.TouchPoint{X: at[0], Y: at[1]})
	}
	p.do(input.DispatchTouchEvent(kind, points))
}

// swipe drags a finger over the terminal.
func (p *page) swipe(from, to float64) {
	p.t.Helper()
	p.touch(input.TouchStart, 180, from)
	for n := range 12 {
		p.touch(input.TouchMove, 180, from+(to-from)*float64(n+1)/12)
	}
	p.touch(input.TouchEnd)
}

// swipeUntil drags a finger until the condition holds: more than once, because a finger that a loaded machine lets rest selects a word.
func (p *page) swipeUntil(what, condition string, from, to float64) {
	p.t.Helper()
	waitFor(p.t, what, func() bool {
		p.swipe(from, to)
		return eval[bool](p, condition)
	})
}

// place returns the middle of a cell, counted from the upper left.
func (p *page) place(col, row int) []float64 {
	p.t.Helper()
	return eval[[]float64](p, fmt.Sprintf(`((grid, {cols, rows}) => [grid.left + (%d + .5) * grid.width / cols, grid.top + (%d + .5) * grid.height / rows])(document.querySelector(".xterm-screen").getBoundingClientRect(), trl.tabs.current.xterm)`, col, row))
}

const viewportY = `trl.tabs.current.xterm.buffer.active.viewportY`

// TestFingerScrolls: a finger scrolls the scrollback, with momentum, and turns the wheel for a full-screen program.
func TestFingerScrolls(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.phone()
	p.command("seq 1 500")
	bottom := eval[int](p, viewportY)
	p.swipeUntil("earlier lines are visible", fmt.Sprintf(`%s <= %d - 15`, viewportY, bottom), 250, 650)
	p.swipeUntil("the last lines are visible again", fmt.Sprintf(`%s === %d`, viewportY, bottom), 650, 250)

	// A finger that leaves while it moves; made in the page, so that the machine's load does not make it rest.
	p.run(`(() => {
		const target = document.querySelector(".xterm-screen");
		const send = (type, y) => {
			const touches = y ? [new Touch({ identifier: 1, target, clientX: 180, clientY: y })] : [];
			target.dispatchEvent(new TouchEvent(type, { touches, changedTouches: touches, bubbles: true, cancelable: true }));
		};
		send("touchstart", 300);
		for (let y = 320; y <= 400; y += 20) send("touchmove", y);
		send("touchend");
		trl.atRelease = ` + viewportY + `;
	})()`)
	p.until("the scrolling continues after the finger has left", viewportY+` < trl.atRelease - 3`)
	p.until("the scrolling ends", `!trl.tabs.current.touch.frame`)
	p.run(`trl.tabs.current.xterm.scrollToBottom()`)

	p.enter("seq 1 500 | less")
	p.until("less shows its first page", `trl.tabs.current.xterm.buffer.active.type === "alternate" && /^1\n2\n/.test(`+screen+`)`)
	p.swipeUntil("a finger scrolls less", `Number(/^(\d+)\n/.exec(`+screen+`)?.[1]) > 5`, 650, 350)
	p.swipeUntil("a finger scrolls less back", `/^1\n2\n/.test(`+screen+`)`, 300, 700)
	p.do(chromedp.Click(`.keybar button[aria-label="Page down"]`, chromedp.ByQuery))
	p.until("PgDn of the key bar goes to the program", `Number(/^(\d+)\n/.exec(`+screen+`)?.[1]) > 5`)
	p.write("q")
	p.prompt()
	p.do(chromedp.Click(`.keybar button[aria-label="Page up"]`, chromedp.ByQuery))
	p.until("PgUp scrolls at the prompt", fmt.Sprintf(`%s < %d`, viewportY, bottom))
}

// TestFingerSelectsAndPastes: a resting finger selects a word, and dragging extends the selection. Copy and Paste have keys.
func TestFingerSelectsAndPastes(t *testing.T) {
	g := serve(t)
	p := g.phone()
	p.allowClipboard()
	p.enter(`clear; echo one two-and "three" four; echo five six`)
	p.until("the words appear", `/^one two-and three four\nfive six\n/.test(`+screen+`)`)
	p.prompt()
	const selection = `trl.tabs.current.xterm.getSelection()`
	p.touch(input.TouchStart, p.place(6, 0)...)
	p.until("the word under the finger is selected", selection+` === "two-and"`)
	p.touch(input.TouchMove, p.place(1, 1)...)
	p.until("dragging extends the selection", selection+` === "two-and three four\nfi"`)
	p.touch(input.TouchEnd)
	p.until("the selection is copied", `/Copied 2 lines/.test(`+notices+`)`)
	if eval[bool](p, `Math.max(...[...document.querySelectorAll(".notice")].map((n) => n.getBoundingClientRect().bottom)) > document.querySelector(".keybar").getBoundingClientRect().top`) {
		t.Error("the notice covers the keys")
	}
	if got := p.clipboard(); got != "two-and three four\nfi" {
		t.Errorf("the clipboard has %q", got)
	}
	if got := eval[string](p, selection); got != "two-and three four\nfi" {
		t.Errorf("the selection is %q afterwards", got)
	}

	p.run(`navigator.clipboard.writeText("something else")`)
	p.do(chromedp.Click(`.keybar button[aria-label="Copy the selection"]`, chromedp.ByQuery))
	waitFor(t, "the clipboard has the selection", func() bool { return p.clipboard() == "two-and three four\nfi" })

	eval[any](p, `navigator.clipboard.writeText("echo pasted $((6*7))")`)
	p.do(chromedp.Click(`.keybar button[aria-label="Paste"]`, chromedp.ByQuery))
	p.until("the Paste key pastes", lastLine+`.endsWith("echo pasted $((6*7))")`)
	p.key("Enter", "Enter")
	p.until("the pasted command ran", `/^pasted 42$/m.test(`+text+`)`)
	p.prompt()

	denied := browser.SetPermission(&browser.PermissionDescriptor{Name: "clipboard-read"}, browser.PermissionSettingDenied).WithOrigin(p.origin).WithBrowserContextID(p.profile)
	if err := denied.Do(browserOf(p.ctx)); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.Click(`.keybar button[aria-label="Paste"]`, chromedp.ByQuery))
	p.until("a dialog with a field opens without the clipboard", `document.activeElement === document.querySelector("dialog textarea")`)
	p.do(input.InsertText("echo by hand"), chromedp.Click(`dialog button[value=yes]`, chromedp.ByQuery))
	p.until("the text of the field is pasted", lastLine+`.endsWith("echo by hand")`)
}
