package browser

import (
	"crypto/sha1"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

func TestTypingRunsCommandsAndVimDraws(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.write("echo $((6*7)) 'ünï → 你好'")
	p.key("Enter", "Enter")
	p.until("the output appears", `/^42 ünï → 你好$/m.test(`+text+`)`)
	p.prompt()

	// Plain control keys are the shell's: the page binds none of them.
	p.key("r", "KeyR", ctrl)
	p.until("bash searches its history", `/reverse-i-search/.test(`+screen+`)`)
	p.key("c", "KeyC", ctrl)
	p.prompt()
	p.write("echo one two")
	p.key("w", "KeyW", ctrl)
	p.until("bash has deleted a word", lastLine+`.endsWith("echo one ")`)
	p.key("u", "KeyU", ctrl)

	if _, err := exec.LookPath("vim"); err != nil {
		t.Skip("there is no vim: make deps")
	}
	p.enter("vim -u NONE -N written.txt")
	p.until("vim draws its screen", `trl.tabs.current.xterm.buffer.active.type === "alternate" && /^~ *$/m.test(`+screen+`) && /written\.txt/.test(`+screen+`)`)
	p.write("ihello from vim")
	p.until("vim shows the typed text", `/^hello from vim *$/m.test(`+screen+`)`)
	p.key("Escape", "Escape")
	p.enter(":wq")
	p.until("vim is gone", `trl.tabs.current.xterm.buffer.active.type === "normal"`)
	p.prompt()
	p.enter("cat written.txt")
	p.until("the file has the text", `/^hello from vim$/m.test(`+text+`)`)
}

func TestSizeIsExact(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	agree := func(label string) string {
		t.Helper()
		p.enter("echo " + label + " $(stty size)")
		p.until("stty says the size of the page's terminal", fmt.Sprintf(`new RegExp("^%s " + trl.tabs.current.xterm.rows + " " + trl.tabs.current.xterm.cols + "$", "m").test(%s)`, label, text))
		return eval[string](p, `trl.tabs.current.xterm.cols + "x" + trl.tabs.current.xterm.rows`)
	}
	first := agree("first")
	// Exact: one more row or column would not fit, and what there is fills the place.
	p.until("the terminal fits its place", `(() => {
		const frame = document.querySelector(".screen").getBoundingClientRect(), grid = document.querySelector(".xterm-screen").getBoundingClientRect(), x = trl.tabs.current.xterm;
		return grid.bottom <= frame.bottom + 1 && grid.right <= frame.right + 1 && grid.height + grid.height / x.rows > frame.height - 1;
	})()`)
	p.do(chromedp.EmulateViewport(900, 500))
	p.until("the terminal is smaller", `trl.tabs.current.xterm.cols + "x" + trl.tabs.current.xterm.rows !== "`+first+`"`)
	second := agree("second")
	p.run(`trl.choose({fontSize: 18})`)
	p.until("the terminal has larger letters", `trl.tabs.current.xterm.cols + "x" + trl.tabs.current.xterm.rows !== "`+second+`"`)
	agree("third")
}

// everyLine is empty if the scrollback has the numbers 1…n, each once and in order. Otherwise it names the first wrong line.
const everyLine = `((n) => {
	const seen = %s.split("\n").filter((line) => /^\d+$/.test(line)).map(Number);
	for (let i = 0; i < n; i++) if (seen[i] !== i + 1) return "line " + (i + 1) + " is " + seen[i];
	return seen.length === n ? "" : seen.length + " lines";
})(%d)`

func TestReloadInTheMiddleOfOutputShowsEveryLineOnce(t *testing.T) {
	g := serve(t)
	p := g.open()
	p.run(`trl.choose({scrollback: 250000})`)
	p.newTerminal()
	p.enter("seq 1 200000")
	p.until("some lines have come", `trl.tabs.current.xterm.buffer.active.length > 20000`)
	p.do(chromedp.Reload())
	p.until("the terminal is back after the reload", `typeof trl === "object" && trl.tabs.current?.xterm && trl.connection.up`)
	p.until("all lines have come", `/^200000\n.*[#$] *$/m.test(`+tail+`)`)
	if wrong := eval[string](p, fmt.Sprintf(everyLine, text, 200000)); wrong != "" {
		t.Error(wrong)
	}
	p.enter("echo still $((40+2))")
	p.until("the terminal is still in control", `/^still 42$/m.test(`+tail+`)`)
}

// TestFloodYieldsToCtrlC: the page responds under endless output, and Ctrl-C has its effect after the output that was already on its way.
func TestFloodYieldsToCtrlC(t *testing.T) {
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.run(`(() => { // where the output was when Ctrl-C was sent
		const {terminal} = trl.tabs.current, {socket} = trl.connection.client.current, {send} = socket;
		socket.send = (m) => { if (typeof m !== "string") trl.sentAt = terminal.client.offset; send.call(socket, m); };
	})()`)
	p.enter("base64 /dev/zero; echo done")
	p.until("the flood is under way", `trl.tabs.current.xterm.buffer.active.length > 2000`)
	if most := eval[float64](p, `new Promise((resolve) => {
		let most = 0, n = 0, before = performance.now();
		const look = () => { const now = performance.now(); most = Math.max(most, now - before); before = now; ++n < 40 ? setTimeout(look, 0) : resolve(most); };
		setTimeout(look, 0);
	})`); most > 20_000 { // that much in one piece would take minutes
		t.Errorf("the page froze for %.0f ms", most)
	}
	p.key("c", "KeyC", ctrl)
	p.prompt()
	came := eval[int](p, `trl.tabs.current.terminal.client.offset - trl.sentAt`)
	t.Logf("prompt %d bytes after Ctrl-C", came)
	// The ring, which its reader may lag by, and the window: 2 MB; and what is drawn until the key gets there, on a machine
	// that does other things too.
	if came > 16<<20 {
		t.Errorf("%d bytes came after Ctrl-C", came)
	}
	if eval[bool](p, `/^done$/m.test(`+tail+`)`) {
		t.Error("what comes behind the interrupted command ran")
	}
	p.enter("seq 1 3000 | tail -1; head -c 37500000 /dev/zero | base64 | tail -c 20; echo whole")
	p.until("the next command runs", `/^whole$/m.test(`+tail+`)`)
}

func TestWholeFloodIsDrawn(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.enter("head -c 1500000 /dev/zero | base64; echo done") // 2 MB: 8 windows. The page draws 300 kB per second on two free cores
	p.until("the end of the output appears", `/^done$/m.test(`+tail+`)`)
	if eval[bool](p, `/not kept|no longer kept/.test(`+text+`)`) {
		t.Error("bytes were skipped")
	}
}

func TestReplayAnswersNoQueries(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	// Each of these makes a terminal answer; read takes the answers while the program asks. Only the last one has an m, and two more characters.
	p.enter(`printf '\e[c\e[>c\e[6n\e[5n\e[?6n\e]10;?\a\e]11;?\a\eP$qm\e\\'; IFS= read -rs -t 60 -d m a; read -rs -t 60 -N 2; echo "got ${#a}"`)
	p.until("the program gets its answers", `/^got [1-9]/m.test(`+text+`)`)
	p.prompt()
	p.do(chromedp.Reload())
	p.until("the terminal is back after the reload", `typeof trl === "object" && trl.tabs.current?.xterm && /^got /m.test(`+text+`)`)
	p.enter("echo clean")
	p.until("nothing was typed before the command", `/[#$] echo clean$/m.test(`+text+`) && /^clean$/m.test(`+text+`)`)
}

func TestSearchFindsAndCounts(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.enter("seq -f 'needle-%g' 1 300; echo end")
	p.until("the output appears", `/^end$/m.test(`+text+`)`)
	p.key("F", "KeyF", ctrl, shift)
	p.until("the search box has the focus", `document.activeElement.type === "search"`)
	p.write("needle-7")
	p.until("the search box counts the matches", `/of 11$/.test(document.querySelector(".find-count").textContent)`)
	before := eval[string](p, `document.querySelector(".find-count").textContent`)
	p.key("Enter", "Enter")
	p.until("Enter goes to the next match", `document.querySelector(".find-count").textContent !== "`+before+`"`)
	p.until("the match is visible", `/^needle-7/m.test(`+screen+`)`)
	p.key("Escape", "Escape")
	p.until("the terminal has the focus again", `document.querySelector(".find").hidden && document.activeElement.classList.contains("xterm-helper-textarea")`)
}

// paste puts text into the clipboard and presses Ctrl+Shift+V.
func (p *page) paste(text string) {
	p.t.Helper()
	eval[any](p, fmt.Sprintf(`navigator.clipboard.writeText(%q).then(() => { trl.tabs.current.focus(); return true })`, text))
	p.do(input.DispatchKeyEvent(input.KeyDown).WithKey("v").WithCode("KeyV").WithModifiers(ctrl|shift).WithCommands([]string{"paste"}),
		input.DispatchKeyEvent(input.KeyUp).WithKey("v").WithCode("KeyV").WithModifiers(ctrl|shift))
}

func TestSeveralLinesAreShownBeforeTheyArePasted(t *testing.T) {
	g := serve(t)
	p := g.open()
	p.allowClipboard()
	p.newTerminal()
	p.paste("echo one-line")
	p.until("one line is pasted at once", lastLine+`.endsWith("echo one-line")`)
	p.key("Enter", "Enter")
	p.until("the pasted command ran", `/^one-line$/m.test(`+text+`)`)
	p.prompt()

	p.paste("echo first\necho second\n")
	p.until("the dialog shows the lines", `/Paste 2 lines\?/.test(document.querySelector("dialog")?.textContent) && /echo second/.test(document.querySelector(".paste-preview").textContent)`)
	p.key("Escape", "Escape")
	p.until("Escape pastes nothing", `!document.querySelector("dialog") && `+lastLine+`.endsWith("# ") || `+lastLine+`.endsWith("$ ")`)

	p.paste("echo fi\x1b[201~rst\necho second\n")
	p.until("the dialog shows the lines", `document.querySelector("dialog")`)
	p.do(chromedp.Click(`dialog button[value=yes]`, chromedp.ByQuery))
	p.until("bash holds both lines as one text", `/echo fi.*rst\n.*echo second/.test(`+text+`)`)
	if eval[bool](p, `/^second$/m.test(`+text+`)`) {
		t.Error("the lines ran before Enter")
	}
	p.key("Enter", "Enter")
	p.until("both lines run on Enter", `/^second$/m.test(`+text+`)`)
}

// TestHugePasteArrivesWhole: a paste is larger than a message may be and larger than the server's buffer for a program that does not read yet.
func TestHugePasteArrivesWhole(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.enter("cat | sha1sum")
	p.until("the command runs", `trl.tabs.current.marks.running`)
	p.run(`(globalThis.lost = 0, trl.connection.status.on(() => lost++))`)
	p.run(`(globalThis.output = { next: -1, gaps: 0, tail: "" }, trl.tabs.current.terminal.chunk.on(({ offset, bytes }) => {
		if (output.next >= 0 && offset !== output.next) output.gaps++;
		output.next = offset + bytes.length;
		output.tail = (output.tail + String.fromCharCode(...bytes)).slice(-(256 << 10));
	}))`)
	const line, lines = "… one of very many lines, with a tail of 70 characters that says nothing", 80_000
	p.run(fmt.Sprintf(`trl.tabs.current.xterm.paste(%q.repeat(%d))`, line+"\n", lines))
	p.run(`trl.tabs.current.terminal.input("typed after it\r\x04")`)
	want := sha1.Sum([]byte(strings.Repeat(line+"\n", lines) + "typed after it\n"))
	// The kernel prints echo that it still has after what sha1sum prints, and drops some of it when the terminal is slow.
	p.until("all of the paste has arrived", fmt.Sprintf(`output.tail.includes("%x  -\r\n")`, want))
	if eval[int](p, `lost`) != 0 {
		t.Error("the paste ended the connection")
	}
	if n := eval[int](p, `output.gaps`); n != 0 {
		t.Errorf("%d gaps in the output", n)
	}
}

func TestProgramsWriteTheClipboardAndNeverReadIt(t *testing.T) {
	g := serve(t)
	p := g.open()
	p.allowClipboard()
	p.newTerminal()
	eval[any](p, `navigator.clipboard.writeText("secret").then(() => true)`)
	p.enter(`printf '\e]52;c;?\a'; IFS= read -rs -t 1 -d '' a; echo "got ${#a} bytes"`)
	p.until("the program got no answer", `/^got 0 bytes$/m.test(`+text+`)`)
	p.prompt()
	p.enter(`printf '\e]52;c;%s\a' "$(printf 'from the program' | base64)"`)
	p.until("the page says that it copied the text", `/copied 16 characters/.test(`+notices+`)`)
	if got := p.clipboard(); got != "from the program" {
		t.Errorf("the clipboard has %q", got)
	}

	// Selecting copies.
	p.enter("echo selectable")
	p.until("the output appears", `/^selectable$/m.test(`+text+`)`)
	at := eval[[]float64](p, `(() => {
		const x = trl.tabs.current.xterm, grid = document.querySelector(".xterm-screen").getBoundingClientRect();
		const y = Array.from({length: x.rows}, (_, y) => y).findLast((y) => x.buffer.active.getLine(x.buffer.active.viewportY + y)?.translateToString(true) === "selectable");
		return [grid.left + 30, grid.top + (y + .5) * grid.height / x.rows];
	})()`)
	p.do(chromedp.MouseClickXY(at[0], at[1], chromedp.ClickCount(2)))
	p.until("the word is selected", `trl.tabs.current.xterm.getSelection() === "selectable"`)
	for end := time.Now().Add(patience); ; { // writing it takes a moment
		got := p.clipboard()
		if got == "selectable" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the clipboard has %q", got)
		}
	}
}

func TestCommandBlocks(t *testing.T) {
	g := serve(t)
	p := g.open()
	p.allowClipboard()
	p.newTerminal()
	p.command("seq 1 100")
	p.command("ls /does/not/exist; (exit 3)")
	p.until("the end of the command is marked", `/exit 3/.test(document.querySelector(".readout").textContent)`)
	p.until("both commands have their marks", `document.querySelectorAll(".command-mark.ill").length === 1`)
	if got := eval[string](p, `trl.tabs.current.marks.blocks.filter((b) => b.from).map((b) => b.command + "|" + b.exit).join("\n")`); got != "seq 1 100|0\nls /does/not/exist; (exit 3)|3" {
		t.Errorf("blocks: %q", got)
	}
	p.key("ArrowUp", "ArrowUp", ctrl, shift)
	p.key("ArrowUp", "ArrowUp", ctrl, shift)
	p.until("the first command is visible", `/seq 1 100/.test(`+screen+`)`)
	p.key("Y", "KeyY", ctrl, shift)
	p.until("the output of the first command is copied", `/Copied 100 lines/.test(`+notices+`)`)
	got := p.clipboard()
	if lines := strings.Split(got, "\n"); len(lines) != 100 || lines[0] != "1" || lines[99] != "100" {
		t.Errorf("copied %d lines: %.40q", len(lines), got)
	}
}

// TestCommandThatEndsItsShell: the shell prints no end mark for such a command. The page shows it as ended nevertheless.
func TestCommandThatEndsItsShell(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	for _, test := range []struct{ command, says string }{{"exit 3", "exit 3"}, {"kill -9 $$", "exit 137"}} {
		p.newTerminal()
		p.enter(test.command)
		p.until("the terminal has ended", `trl.tabs.current.terminal.over`)
		p.until("the bar shows the end of the last command", fmt.Sprintf(`trl.tabs.current.element.querySelector(".readout").textContent.includes(%q)`, test.says))
		p.until("no session is shown as busy", `!document.querySelector(".session.busy") && !/sleep|exit|kill/.test(document.querySelector(".sessions").textContent)`)
	}
	p.newTerminal()
	p.run(`trl.connection.call("session.destroy", {session_id: trl.tabs.current.session})`)
	p.until("the terminal says that it has ended with its session", `/^This terminal has ended with its session\./.test(trl.tabs.current.element.querySelector(".pane-note").textContent)`)
}

func TestLostGraphicsDoNotLoseTheScreen(t *testing.T) {
	g := serve(t)
	p := g.open()
	p.run(`trl.choose({webgl: true})`)
	p.newTerminal()
	if !eval[bool](p, `[...document.querySelectorAll(".xterm-screen canvas")].some((c) => c.getContext("webgl2"))`) {
		t.Log("without WebGL the page draws with elements from the start")
	}
	p.run(`document.querySelectorAll(".xterm-screen canvas").forEach((c) => c.getContext("webgl2")?.getExtension("WEBGL_lose_context")?.loseContext())`)
	p.enter(`printf '\e[38;2;10;200;30mstill\e[0m drawn\n'`)
	p.until("xterm.js draws with elements", `[...document.querySelectorAll(".xterm-rows > div")].some((row) => /still drawn/.test(row.textContent.replaceAll("\u00a0", " ")))`)
	p.until("the colour is right", `[...document.querySelectorAll(".xterm-rows span")].some((s) => s.textContent === "still" && s.style.color)`)
}

// TestCommandsEndAfterTheirPromptIsGone: the page reports the end of a command whose prompt has left the buffer.
func TestCommandsEndAfterTheirPromptIsGone(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.command("true")
	for n, command := range []string{`printf '\e[H\e[2J\e[3J'; (exit 11)`, "seq 1 30000; (exit 12)"} {
		p.enter(command)
		p.until("the page shows the end of the command", fmt.Sprintf(`/exit %d/.test(document.querySelector(".readout .exit")?.textContent)`, 11+n))
		p.prompt()
		if eval[bool](p, `!!trl.tabs.current.marks.running || trl.tabs.current.marks.current.took === undefined`) {
			t.Errorf("%s: the page shows it as running, or without its duration", command)
		}
	}
	p.enter("echo next")
	p.until("the next command has ended", `trl.tabs.current.marks.current.command === "echo next" && trl.tabs.current.marks.current.ended`)
	if got := eval[int](p, `trl.tabs.current.marks.blocks.filter((b) => b.prompt.isDisposed).length`); got != 0 {
		t.Errorf("the page keeps %d commands whose prompts are gone", got)
	}
}

// TestKeysGoInFrames: keys cost no requests and no answers, and pastes go in requests. The page says when keys did not arrive.
func TestKeysGoInFrames(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.run(`(globalThis.sent = { keys: 0, requests: 0 }, globalThis.socket = trl.connection.client.current.socket, socket.send = function (data) {
		if (typeof data !== "string") sent.keys++;
		else if (JSON.parse(data).method === "term.input") sent.requests++;
		WebSocket.prototype.send.call(this, data);
	})`)
	const typed = "echo $((6*7)) keys"
	for _, key := range typed {
		p.write(string(key))
	}
	p.key("Enter", "Enter")
	p.until("the command has run", `/^42 keys$/m.test(`+text+`)`)
	if keys, requests := eval[int](p, `sent.keys`), eval[int](p, `sent.requests`); keys != len(typed)+1 || requests != 0 {
		t.Errorf("%d frames and %d requests for %d keys", keys, requests, len(typed)+1)
	}
	p.enter("cat | wc -c")
	p.until("the command runs", `trl.tabs.current.marks.running`)
	p.run(`sent.keys = 0`)
	p.run(`(trl.tabs.current.xterm.paste("pasted lines\n".repeat(1000)), trl.tabs.current.terminal.input("typed\r\x04"))`) // at once: the paste is not answered yet
	p.until("all of it has arrived in its order", `/^13006$/m.test(`+text+`)`)
	if keys, requests := eval[int](p, `sent.keys`), eval[int](p, `sent.requests`); keys != 0 || requests != 3 {
		t.Errorf("%d frames and %d requests for the paste and what was typed behind it", keys, requests)
	}
	p.command("echo then")

	p.enter("stty raw -echo; sleep 600")
	p.until("the program runs that does not read", `trl.tabs.current.marks.running`)
	p.run(`"k".repeat(400).split("").forEach((key) => trl.tabs.current.terminal.input(key.repeat(4096)))`)
	p.until("the page says that keys did not arrive", `/What you typed did not arrive/.test(`+notices+`)`)
	if got := eval[int](p, `document.querySelectorAll(".notice").length`); got > 1 { // none: it has gone
		t.Errorf("the page says it %d times", got)
	}
}

// TestHalvesOfACharacterAreTyped: a browser or an input method may pass on the two units of a surrogate pair one by one.
func TestHalvesOfACharacterAreTyped(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	for _, half := range []string{`echo \ud83d`, `\ude00 \ud83d`, `lone\r`} {
		p.run(`trl.tabs.current.xterm.input("` + half + `")`)
	}
	p.until("complete characters arrive", `/^😀 lone$/m.test(`+text+`)`)
	if told := eval[string](p, notices); told != "" {
		t.Errorf("the page reports: %s", told)
	}
}

// TestWidthsAreThoseOfGraphemes: a grapheme has the same width as in other terminals, and the gateway's own emulator, which draws screens for
// clients, agrees.
func TestWidthsAreThoseOfGraphemes(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	session := eval[string](p, `trl.connection.call("session.create", {}).then((s) => s.session_id)`)
	widths := []struct {
		text  string
		width int
	}{{"🇩🇪", 2}, {"❤️", 2}, {"👩‍👩‍👧", 2}, {"👍🏽", 2}, {"1️⃣", 2}, {"e\u0301", 1}, {"漢", 2}, {"─", 1}, {"한", 2}, {"🙂", 2}, {"❤", 1}}
	var all strings.Builder
	for _, w := range widths {
		all.WriteString(" '" + w.text + "'")
	}
	term := eval[string](p, fmt.Sprintf(`trl.connection.call("term.open", {session_id: %q, cols: 80, rows: 24, command: %q}).then((t) => t.term_id)`, session,
		`n=0; for s in`+all.String()+`; do n=$((n+1)); printf '\033[2J\033[2;1H%s\033[1;1H%d\033[2;1H%s' "$s" $n "$s"; read -r x; done`))
	p.run(fmt.Sprintf(`trl.workspace.openAddress("term/%s/%s")`, session, term))
	p.until("the page is in view mode", `trl.tabs.current?.xterm && /View only/.test(document.body.innerText)`)
	// The first try may come before the page has attached.
	p.until("the page is in control", `!/View only/.test(document.body.innerText) || (trl.tabs.current.takeOver(), false)`)
	for n, w := range widths {
		p.until("the text is printed", fmt.Sprintf(`((b) => b.getLine(b.baseY).translateToString(true) === "%d" && b.cursorY === 1)(trl.tabs.current.xterm.buffer.active)`, n+1))
		page := eval[int](p, `trl.tabs.current.xterm.buffer.active.cursorX`)
		gateway := eval[int](p, fmt.Sprintf(`trl.connection.call("term.snapshot", {term_id: %q}).then((s) => s.cursor.col)`, term))
		if page != w.width || gateway != w.width {
			t.Errorf("%q: width %d in the page, %d in the gateway's screen, want %d", w.text, page, gateway, w.width)
		}
		p.run(`trl.tabs.current.terminal.input("\r")`)
	}
}
