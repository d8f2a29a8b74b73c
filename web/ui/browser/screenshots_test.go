package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// TestScreenshots makes the pictures of README.md and docs/web.md: `make screenshots`, which sets TRL_SCREENSHOTS to their folder.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("TRL_SCREENSHOTS")
	if dir == "" {
		t.Skip("make screenshots")
	}
	g := serve(t)
	if home := "/srv/demo"; os.Mkdir(home, 0o755) == nil { // a name that looks well in a picture, where we may
		t.Cleanup(func() { os.RemoveAll(home) })
		g.stop()
		g.home = home
		g.start()
	}
	g.writeFiles()
	p := g.open()
	shot := func(name, scheme string, width, height int64) {
		t.Helper()
		p.do(
			emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
			chromedp.EmulateViewport(width, height, chromedp.EmulateScale(1.5)),
		)
		p.until("the page has its colours", fmt.Sprintf(`(trl.tabs.current?.xterm?.options.theme.background ?? "#ffffff") === "#ffffff" || %t`, scheme == "dark"))
		p.until("the terminal is drawn", `new Promise((drawn) => setTimeout(() => requestAnimationFrame(() => drawn(true)), 400))`)
		var png []byte
		p.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
			png, err = cdppage.CaptureScreenshot().Do(ctx)
			return err
		}))
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	g.run("agent", "cd project && ls")
	g.run("agent", "./check parse queue stream")
	g.run("agent", "grep -rn TODO .")
	g.run("agent", "./check journal; exit_code=$?; echo 'warning: one test failed' >&2; (exit $exit_code)")
	p.until("the session is listed", fmt.Sprintf(sessionID, "agent"))
	p.run(fmt.Sprintf(`trl.connection.call("process.start", {session_id: `+sessionID+`, name: "dev server", command: "python3 -u -m http.server 0"})`, "agent"))
	g.background("agent", "for n in $(seq 1 400); do echo \"building unit $n of 400\"; sleep 0.2; done")
	p.until("the command runs", `trl.sessions.list.some((s) => s.current_exec)`)
	g.background("agent", "./check all")
	g.background("agent", "git push")
	g.run("nightly", "true")
	g.run("nightly", "./missing")

	p.do(chromedp.EmulateViewport(1240, 740, chromedp.EmulateScale(1.5)))
	p.newTerminal()
	for _, command := range []string{"cd project", "ls -l", "./check parse queue stream", "./check journal", "grep -n TODO *.go", "seq -s ' ' 40"} {
		p.command(command)
	}
	p.write("git commit -m ")
	shot("terminal-dark", "dark", 1240, 740)
	shot("terminal-light", "light", 1240, 740)

	p.share("terminal", "view")
	p.run(`document.querySelector('.session.on button[aria-label="Share"]').click()`)
	p.until("the link is listed", `/a friend/.test(document.querySelector(".shares")?.textContent)`)
	p.run(`[...document.querySelectorAll("dialog button")].find((b) => b.textContent === "Make a link").click()`)
	p.until("the link is shown", `document.querySelector(".share-link")`)
	shot("share-dark", "dark", 1240, 740)
	p.key("Escape", "Escape")
	p.until("the dialog is closed", `!document.querySelector("dialog")`)

	p.openActivity("agent")
	p.until("the queue is shown", `/git push/.test(document.querySelector(".queue").textContent)`)
	p.until("the port is shown", `document.querySelector(".process .port")`)
	p.run(`(() => { for (const b of document.querySelectorAll(".block .fold")) if (/cd project/.test(b.parentElement.textContent)) b.click(); })()`)
	shot("activity-light", "light", 1240, 740)
	shot("activity-dark", "dark", 1240, 740)

	p.run(`trl.workspace.openPool()`)
	const past = `trl.samples.samples.length > 8 && trl.samples.samples.filter((s) => s.p50 > 0).length > 3`
	for n := 0; n < 1000 && !eval[bool](p, past); n++ { // something to plot, in more than one look at it
		g.run("nightly", fmt.Sprintf("for i in 1 2 3 4 5 6 7 8; do :; done; sleep 0.0%d; (exit %d)", n%7, n%4/3))
		if n%3 == 0 {
			g.run(fmt.Sprintf("job-%d", n%15), "true")
		}
	}
	p.until("the pool has enough samples", past)
	shot("pool-light", "light", 1240, 740)
	shot("pool-dark", "dark", 1240, 740)

	p.do(chromedp.EmulateViewport(1240, 740, chromedp.EmulateScale(1.5)))
	p.run(`trl.choose({record: true})`)
	p.run(`trl.workspace.newTerminal(trl.tabs.views.find((v) => v.xterm).session)`)
	p.until("the second terminal is recorded", `trl.tabs.current.xterm && trl.tabs.current.terminal.recorded`)
	p.prompt()
	for _, command := range []string{"cd project", "ls -l", "./check parse queue stream", "./check journal", "grep -n TODO *.go", "git status"} {
		p.command(command)
	}
	p.enter("exit")
	p.run(`trl.workspace.openRecordings()`)
	p.until("the recording is listed with its end", `/exit/.test(`+tapeRow+`?.textContent)`)
	p.run(tapeRow + `.querySelector("button").click()`)
	p.until("the player is open", tape+`?.length > 0`)
	p.run(tape + `.seek(` + tape + `.length * 0.8)`)
	shot("player-light", "light", 1240, 740)
	shot("player-dark", "dark", 1240, 740)
	p.run(`trl.tabs.close(trl.tabs.current)`)
	p.run(`trl.tabs.close(trl.tabs.current)`)
	p.run(`trl.tabs.close(trl.tabs.views.findLast((v) => v.xterm))`)

	p.do(chromedp.EmulateViewport(390, 780, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulateScale(1.5)))
	p.run(`trl.tabs.select(trl.tabs.views.find((v) => v.xterm), false)`)
	p.do(emulation.SetTouchEmulationEnabled(true))
	var png []byte
	for name, scheme := range map[string]string{"phone-dark": "dark", "phone-light": "light"} {
		p.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
		p.until("everything is drawn", `new Promise((drawn) => setTimeout(() => requestAnimationFrame(() => drawn(true)), 500))`)
		p.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
			png, err = cdppage.CaptureScreenshot().Do(ctx)
			return err
		}))
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// writeFiles writes a small project and the settings of a shell into the home of the sessions.
func (g *gateway) writeFiles() {
	g.t.Helper()
	for name, text := range map[string]string{
		".bashrc":            "PS1='\\[\\e[34m\\]\\w\\[\\e[0m\\] \\$ '\nalias ls='ls --color=always' grep='grep --color=always'\nexport TIME_STYLE=+%H:%M\n",
		"project/check":      "#!/bin/bash\nfor t; do sleep 0.15; if [ $t = journal ]; then printf '\\e[31mFAIL\\e[0m  %-8s  offset 4096: want 18, got 17\\n' $t; bad=1; else printf '\\e[32mok\\e[0m    %-8s  0.1%ds\\n' $t ${#t}; fi; done\nexit ${bad:-0}\n",
		"project/journal.go": "package journal\n\n// TODO: say what a gap is\nfunc Next() {}\n",
		"project/queue.go":   "package journal\n\nfunc Push() {} // TODO: bound it\n",
		"project/README":     "A project.\n",
	} {
		path := filepath.Join(g.home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			g.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			g.t.Fatal(err)
		}
	}
}
