package mcp

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

var (
	docBlock   = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")
	changing   = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)?(?: ms| s)\b|:[0-9]+: `)
	idOfAnswer = regexp.MustCompile(`\[([xpts])-[^\]]*\]`)
)

// plain is an answer without what differs from run to run.
func plain(text string) string {
	text = idOfAnswer.ReplaceAllString(text, "[$1-…]")
	return strings.TrimSpace(changing.ReplaceAllString(text, "N"))
}

// TestExamplesOfThePage: each block of docs/clients/mcp.md does what the page says.
func TestExamplesOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/clients/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	port := testkit.Port(t)
	if !strings.Contains(string(page), "http.server 3000") {
		t.Error("the page has another port")
	}
	page = bytes.ReplaceAll(page, []byte("3000"), []byte(strconv.Itoa(port)))
	wait, open := gate(t) // for the work that takes long, until the page waits for it
	quick := []byte(`sleep 3; echo done", "yield_s": 1}`)
	if bytes.Count(page, quick) != 1 {
		t.Errorf("the page has no %s", quick)
	}
	page = bytes.Replace(page, quick, []byte(wait+`; echo done", "yield_s": 5}`), 1)
	g := rig.Gateway(t)
	h := onStdio(t, g)
	ids := map[string]string{} // the latest of each kind
	answer := ""
	run := 0
	_, noCurl := exec.LookPath("curl")
	for _, block := range docBlock.FindAllStringSubmatch(string(page), -1) {
		kind, text := block[1], block[2]
		switch {
		case kind == "sh" && strings.HasPrefix(text, "curl") && noCurl != nil:
			t.Log("not run: ", noCurl)
		case kind == "sh":
			cmd := exec.Command("/bin/sh", "-ec", text)
			cmd.Dir = g.Home
			cmd.Env = append(os.Environ(), "TRL_URL=http://"+g.Addr, "TRL_TOKEN=any", "PATH="+filepath.Dir(rig.Binary)+":"+os.Getenv("PATH"))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", text, err, out)
			} else {
				answer = string(out)
			}
		case kind == "json" && strings.HasPrefix(text, `{"name"`):
			for kind, id := range ids {
				text = strings.ReplaceAll(text, kind+"-…", id)
			}
			var call struct {
				Name      string
				Arguments object
			}
			if err := json.Unmarshal([]byte(text), &call); err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			if call.Name == "wait" {
				open()
			}
			answer, _ = h.call(call.Name, call.Arguments)
			if m := regexp.MustCompile(`\[(([xpt])-[a-z0-9]+)\]`).FindStringSubmatch(answer); m != nil {
				ids[m[2]] = m[1]
			}
		case kind == "json":
			if !json.Valid([]byte(text)) {
				t.Errorf("no JSON: %s", text)
			}
		case kind == "text":
			for i := 0; strings.Contains(answer, " terminal, ") && plain(answer) != plain(text) && i < 30; i++ { // a slow program: its screen rested before
				answer = h.must("wait", object{"id": ids["t"], "yield_s": 2})
			}
			if plain(answer) != plain(text) {
				t.Errorf("the page has\n%s\nthe answer is\n%s", plain(text), plain(answer))
			}
		default:
			t.Errorf("a block of %s", kind)
		}
		run++
	}
	if run < 20 {
		t.Errorf("%d blocks", run)
	}
	b, err := os.ReadFile(filepath.Join(g.Home, ".vscode/mcp.json"))
	if err != nil || !strings.Contains(string(b), rig.Binary) {
		t.Errorf("%v %s", err, b)
	}
}
