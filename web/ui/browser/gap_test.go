package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// long prints n lines of nearly 1,000 bytes, each one row on the screen. The server keeps 4 MiB of a terminal.
func long(n int) string {
	return fmt.Sprintf(`seq 1 %d | sed "s/\$/$(printf '\033[m%%.0s' $(seq 320))/"`, n)
}

// after lists the numbers that the terminal shows on lines of their own after the text about the gap.
const after = text + `.split(/bytes of output are no longer kept\]\n/)[1].match(/^\d+$/mg).map(Number)`

// TestGapIsToldAndTheRestIsShown: during a disconnect a program prints more than the server keeps. The page keeps the earlier output, shows the kept
// output, reports the missing bytes at their place and in the banner, and shows no command as running whose state is unknown.
func TestGapIsToldAndTheRestIsShown(t *testing.T) {
	t.Parallel()
	g := serve(t)
	x := g.proxy()
	p := g.openAt("http://"+x.Addr().String(), g.token)
	p.newTerminal()
	p.command("echo seen before")
	p.command("PS1='$ '")
	p.enter("while [ ! -e go ]; do sleep 0.02; done; " + long(6000) + "; touch gone; echo all of $((6000 + 1))")
	p.until("the command runs", `/running/.test(document.querySelector(".readout").textContent)`)
	p.expectOffline()
	x.cut()
	p.until("the banner reports the lost connection", `/Connection lost: it was cut off. Sessions go on/.test(document.querySelector(".banner").textContent)`)
	if err := os.WriteFile(filepath.Join(g.home, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the command has printed everything", func() bool { _, err := os.Stat(filepath.Join(g.home, "gone")); return err == nil })
	x.mend()
	p.until("the banner reports the missing bytes", `/Connection restored.*but something was lost because .* bytes of output are no longer kept/.test(document.querySelector(".banner").textContent)`)
	p.until("the kept output appears", `/^all of 6001$/m.test(`+text+`)`)
	if !eval[bool](p, `/^seen before$/m.test(`+text+`)`) {
		t.Error("the output from before the disconnect is gone")
	}
	if !eval[bool](p, `/all of .*\n+\[[\d,]+ bytes of output are no longer kept\]\n.*\n\d+\n\d+\n/.test(`+text+`)`) {
		t.Error("the gap is not reported between the earlier output and the kept output")
	}
	if wrong := eval[string](p, `(() => { const n = `+after+`; const at = n.findIndex((v, i) => i > 1 && v !== n[i-1] + 1); return n.length < 3000 || n.at(-1) !== 6000 ? n.length + " lines to " + n.at(-1) : at > 0 ? n[at-1] + " before " + n[at] : "" })()`); wrong != "" {
		t.Error(wrong)
	}
	p.until("the page shows nothing as running", `!/running/.test(document.querySelector(".readout").textContent) && !document.querySelector(".session.busy")`)
	p.command("echo typed $((1+1))")
	p.until("the bar shows the end of the next command", `/exit 0.*echo typed/.test(document.querySelector(".readout").textContent)`)
}

// TestReloadBesideAFullScreenProgram: the server no longer keeps the beginning of the program's output, which chose the alternate screen and the arrow keys.
func TestReloadBesideAFullScreenProgram(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.enter("clear; echo beneath")
	p.until("the screen is clear", `/^beneath\n.*[#$]/.test(`+screen+`)`)
	p.enter(`printf '\033[?1049h\033[?1h\033[?2004h'; ` + long(5000) + `; printf '\033[H\033[2Jfull\033[3;3Hscreen '; cat`)
	p.until("the program has drawn its screen", `/^full\n\n  screen/.test(`+screen+`)`)
	p.do(chromedp.Reload())
	p.until("the screen is there after the reload", `trl.tabs?.current?.xterm?.buffer.active.type === "alternate" && /^full\n\n  screen/.test(`+screen+`)`)
	if modes := eval[string](p, `JSON.stringify([trl.tabs.current.xterm.modes.applicationCursorKeysMode, trl.tabs.current.xterm.modes.bracketedPasteMode])`); modes != "[true,true]" {
		t.Errorf("application cursor keys and bracketed paste: %s, want both", modes)
	}
	p.key("c", "KeyC", ctrl)
	p.until("the prompt appears", `/screen \^C\n.*[#$]\s*$/.test(`+screen+`)`) // what is typed before the kernel drops at ^C
	p.enter(`printf '\033[?1049l\033[?1l'`)
	p.until("the normal screen has its earlier text", `/^beneath/m.test(`+screen+`)`)
}
