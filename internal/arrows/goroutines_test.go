package arrows

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// goroutines says for each function of the server that starts goroutines which rows of ARCHITECTURE.md's table describe them. short are those
// that need no row: the function that starts them waits for them, or they end with one call whose time is bounded.
var goroutines = map[string][]string{
	// keeper
	"Run":                   {"supervise", "collector"},
	"keeper.launch":         {"serve"},
	"keeper.restore":        {"serve"},
	"server.readRequests":   {"request reader"},
	"requestReader.handOff": {"request reader"},
	"server.runSlow":        {"slow request", "slow closer"},
	"server.restore":        {"tellWhenExited"},
	"server.start":          {"tellWhenExited"},
	"signals.install":       {"signals reader"},
	"Link.SendBorrowed":     {"sendWhenRoom"},
	"Dial":                  {"receiveAnswers"},
	"NewHost":               {"child reaper"},
	"Host.onDirThread":      {"directory thread"},
	"Host.dirThread":        {"directory thread"},
	"OnOwnThread":           {"throwaway thread"},
	"Group.enterDir":        {"throwaway thread"},
	"runAndPassSignals":     {"signals"},
	"Group.endForks":        short,
	"Host.Close":            short,
	"Host.start":            short,
	"makeThreads":           short,
	"OnOtherThread":         short,
	// shells
	"Ask":                         {"question"},
	"Command.checkDir":            {"question"},
	"Command.startWatchdogLocked": {"watchdog"},
	"Copier.Start":                {"copier"},
	"Shell.PrepareProcess":        {"feeder"},
	"Adoption.Process":            {"feeder"},
	"Process.watchChild":          {"process"},
	"Process.watchCopy":           {"process"},
	"Shell.addTerminal":           {"terminal"},
	"Adoption.KillUnrecorded":     short,
	"Warm.End":                    short,
	"Concurrently":                short,
	// pool
	"Pool.Start":             {"warmer", "recovery"},
	"Pool.Recover":           {"recovery"},
	"Pool.recoverSession":    {"discard"},
	"Pool.register":          {"runner"},
	"Pool.Receive":           {"runner"},
	"Session.resume":         {"runner", "process", "terminal"},
	"Session.endLocked":      {"session's end"},
	"Session.endMovedLocked": {"session's end"},
	"Session.beginProcess":   {"process"},
	"Session.beginTerminal":  {"terminal"},
	"State.Follow":           {"follower of a screen"},
	"Store.Start":            {"recorder"},
	"Reaper.Start":           {"reaper"},
	"Shells.watchLocked":     {"warm shell"},
	"Pool.Close":             short,
	"Table.Release":          short,
	"Table.ReleaseEnded":     short,
	"Sessions.Restore":       short,
	"Pool.unregisterLocked":  short,
	"Until":                  short,
	"Session.endChildren":    short,
	"Session.memoryLocked":   short,
	"Store.Wait":             short,
	"Shells.Close":           short,
	// web
	"Follow":                {"reloader"},
	"Open":                  {"audit writer"},
	"drainer.Drain":         {"drain (of the server)"},
	"Server.Serve":          {"accept"},
	"Server.serveUnix":      {"connection reader"},
	"Server.serveWebSocket": {"connection reader"},
	"Visit.Connect":         {"connection reader"},
	"conn.serve":            {"keepalive"},
	"conn.spawn":            {"answer", "pump"},
	"call.runDetached":      {"answer"},
	"watch.follow":          {"pump"},
	"Grant.OnExpiry":        {"expiry"},
	"Conn.begin":            {"pings of a link"},
	"Conn.AwaitNext":        {"next message of a link"},
	"NewStream":             {"reader of a stream"},
	"farLogins.add":         {"checker of logins"},
	"farLogins.check":       short,
	"farLogins.tell":        short,
	"elsewhere.search":      short,
	"Directory.run":         {"directory"},
	"Member.Start":          {"member"},
	"Directory.raise":       short,
	"Server.shutdown":       short,
	"Clients.Leave":         short,
	"conn.finishHalfClosed": short,
	"conn.relayTo":          {"relay"},
	"relay.run":             short,
	"call.ask":              short,
	"Mover.Resume":          {"mover"},
	"Mover.take":            {"mover"},
	"Mover.give":            {"mover"},
	"Drain.MoveAll":         {"drain (of the server)"},
}

var short = []string{}

// elsewhere are rows whose goroutines the program itself starts.
var elsewhere = []string{"AdjustGOMAXPROCS"}

func TestGoroutinesAreInTheTable(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Goroutines\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(section, -1) {
		if name := m[1]; name != "Goroutine" && !strings.HasPrefix(name, "---") {
			rows[name] = !slices.Contains(elsewhere, name)
		}
	}
	if len(rows) < 20 {
		t.Fatalf("%d rows found: the reading of the table is broken", len(rows))
	}
	starts := functionsThatStartGoroutines(t)
	for _, f := range slices.Sorted(maps.Keys(starts)) {
		described, known := goroutines[f]
		if !known {
			t.Errorf("%s: %s starts a goroutine: describe it in the table of docs/ARCHITECTURE.md, and name the row in goroutines, or say that it is short", starts[f], f)
		}
		for _, row := range described {
			if _, ok := rows[row]; !ok {
				t.Errorf("docs/ARCHITECTURE.md has no row %q, which describes what %s starts", row, f)
			}
			rows[row] = false
		}
	}
	for f := range goroutines {
		if starts[f] == "" {
			t.Errorf("no function %s starts a goroutine: take it out of goroutines", f)
		}
	}
	for row, missing := range rows {
		if missing {
			t.Errorf("docs/ARCHITECTURE.md has a row %q, which no function starts", row)
		}
	}
}

// functionsThatStartGoroutines are those of the server that have a go statement, or a call of a WaitGroup's Go; and where.
func functionsThatStartGoroutines(t *testing.T) map[string]string {
	t.Helper()
	starts := map[string]string{}
	for _, name := range productFiles(t) {
		if !strings.HasSuffix(name, ".go") || !within(name, []string{"runtime", "pool", "reaper", "web", "cluster", "internal/member"}) || within(name, []string{"web/ui"}) {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, isCall := n.(*ast.CallExpr)
				_, isGo := n.(*ast.GoStmt)
				if isCall && len(call.Args) == 1 {
					s, ok := call.Fun.(*ast.SelectorExpr)
					isGo = ok && s.Sel.Name == "Go"
				}
				if isGo {
					starts[qualified(fn)] = fmt.Sprint(name, ":", fset.Position(n.Pos()).Line)
				}
				return true
			})
		}
	}
	return starts
}

// qualified is a function's name, after that of its receiver's type.
func qualified(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	typ := fn.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if g, ok := typ.(*ast.IndexExpr); ok {
		typ = g.X
	}
	return typ.(*ast.Ident).Name + "." + fn.Name.Name
}
