package browser

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
)

// TestLongLinesArePlainSoon: Plain gives the same text as the regular expressions that define it, and a megabyte without a newline takes as little
// time as a megabyte with many.
func TestLongLinesArePlainSoon(t *testing.T) {
	t.Parallel()
	p := serve(t).open()
	source, err := filepath.Abs("../src/ansi.ts")
	if err != nil {
		t.Fatal(err)
	}
	built := api.Build(api.BuildOptions{EntryPoints: []string{source}, Bundle: true, Format: api.FormatIIFE, GlobalName: "ansi"})
	if len(built.Errors) > 0 {
		t.Fatal(built.Errors)
	}
	p.run(`globalThis.Plain = (() => { ` + string(built.OutputFiles[0].Contents) + `; return ansi.Plain; })()`)
	if different := eval[string](p, `(() => {
		let rest = "";
		const defined = (piece) => {
			const text = rest + piece;
			const cut = /\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]{0,4096}|[PX^_][^\x1b]{0,4096})?$|\r$/.exec(text);
			rest = cut ? cut[0] : "";
			return (cut ? text.slice(0, cut.index) : text)
				.replace(/\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_][^\x1b]*\x1b\\|\x1b[ -/]*[0-~]/g, "")
				.replace(/\r+\n/g, "\n")
				.replace(/[^\n]*\r(?=[^\n])/g, "")
				.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
		};
		const words = ["a", "b", "é", "\r", "\r", "\r", "\n", "\n", "\r\n", "\t", "\b", "\x1b", "\x1b[", "1;2", "m", "\x1b]", "\x07", "\x1bP", "\x1b\\"];
		for (let n = 0; n < 30000; n++) {
			const plain = new Plain(), said = [];
			rest = "";
			for (let pieces = 1 + Math.random() * 4 | 0; pieces > 0; pieces--) {
				const piece = Array.from({length: Math.random() * 9 | 0}, () => words[Math.random() * words.length | 0]).join("");
				said.push(piece);
				const got = plain.take(new TextEncoder().encode(piece)), want = defined(piece);
				if (got !== want) return JSON.stringify({said, got, want});
			}
		}
		return "";
	})()`); different != "" {
		t.Error(different)
	}
	for what, of := range map[string]string{"letters": `"a".repeat(1 << 20)`, "carriage returns": `"\r".repeat(1 << 20)`, "both": `"a\r".repeat(1 << 19)`, "parameters": `"\x1b[" + ";".repeat(1 << 20)`} {
		if took := eval[float64](p, fmt.Sprintf(`(() => {
			const bytes = new TextEncoder().encode(%s), plain = new Plain(), began = performance.now();
			for (let at = 0; at < bytes.length; at += 1 << 18) plain.take(bytes.subarray(at, at + (1 << 18)));
			return performance.now() - began;
		})()`, of)); took > 20_000 { // on a busy machine; it was hours
			t.Errorf("a megabyte of %s takes %.0f ms", what, took)
		}
	}
}

// TestFloodOfMarksIsCheap: the list of commands stays bounded under a flood of marks and has the latest commands.
func TestFloodOfMarksIsCheap(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	session := eval[string](p, `trl.connection.call("session.create", {}).then((s) => s.session_id)`)
	term := eval[string](p, fmt.Sprintf(`trl.connection.call("term.open", {session_id: %q, cols: 80, rows: 24, command: %q}).then((t) => t.term_id)`, session,
		`bash -c 'printf "\e]133;A\a\e]133;C\a\e]133;D;%d\a" {1..6000}'; sleep 1000`))
	p.run(fmt.Sprintf(`trl.workspace.openAddress("term/%s/%s")`, session, term))
	const blocks = `trl.tabs.current.marks.blocks`
	p.until("the last mark has come", blocks+`.at(-1)?.exit === 6000`)
	if got := eval[string](p, `JSON.stringify([`+blocks+`.length, `+blocks+`[0].exit, trl.tabs.current.xterm.markers.length <= 3 * `+blocks+`.length])`); got != "[1000,5001,true]" {
		t.Errorf("number of commands, exit code of the first, and whether no other markers are left: %s", got)
	}
	p.until("the bar shows the last command", `/exit 6000/.test(document.querySelector(".readout .exit")?.textContent)`)
}

// TestCtrlCInAFlood: at most 512 KiB come to the page between Ctrl-C and its echo. The page draws 300 kB per second here.
func TestCtrlCInAFlood(t *testing.T) {
	t.Parallel()
	p := serve(t).open()
	p.newTerminal()
	p.run(`(() => {
		const terminal = trl.tabs.current.terminal, drawn = terminal.drawn.bind(terminal);
		let at = 0, all = 0;
		terminal.drawn = (offset) => { at ||= offset; all = Math.max(all, offset); };
		setInterval(() => { if (at < all) drawn(at = Math.min(all, at + 6000)); }, 20);
		const socket = trl.connection.client.current.socket, send = socket.send, take = socket.onmessage;
		let flooded = 0, after = -1, tail = "";
		globalThis.flood = () => ({flooded, after, over: tail.includes("^C")});
		socket.send = (m) => { if (flooded > 1 << 19 && after < 0 && typeof m !== "string") after = 0; send.call(socket, m); };
		socket.onmessage = (m) => {
			if (typeof m.data !== "string") {
				flooded += m.data.byteLength;
				if (after >= 0 && !tail.includes("^C")) {
					after += m.data.byteLength;
					tail = tail.slice(-1) + new TextDecoder("latin1").decode(m.data);
				}
			}
			take.call(socket, m);
		};
	})()`)
	p.enter("yes")
	p.until("the flood is under way", `flood().flooded > 1 << 20`)
	p.key("c", "KeyC", ctrl)
	p.until("the echo of Ctrl-C has come, or too much before it", `flood().over || flood().after > 1 << 20`)
	if after := eval[int](p, `flood().after`); after > 512<<10 {
		t.Errorf("at least %d bytes came between the key and its echo", after)
	} else {
		t.Logf("%d bytes came between the key and its echo", after)
	}
}
