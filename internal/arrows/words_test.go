package arrows

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// oldWords are the metaphors that docs/GLOSSARY.md has replaced. They are found as a word and as a part of a name, in Go and Markdown.
// A word that is also plain English elsewhere is not here.
const oldWords = `nursery nurseries tenant tenants bequest bequests bequeath bequeathed heirs inlet inlets outlet outlets lane lanes ledger ledgers
	undertaker belongings scout scouts glance husk husks stillborn epitaph burial bury buried furnish tidy tidied crowd crowds behalf fate lodge
	vacate vouch nudge nudged siege slay condemned mistrust offences renewal lapse wordless neighbourhood farewell misuse`

// oldNames are names whose words are plain English elsewhere.
const oldNames = `Found Founding Founded Meanwhile KeptCell NewCell AdoptCopy Tethered tethered TakeWill willVar errLater errGone holdBack letGo goOn
	killRest standIn standDown turnAway hungUp keptAll keptEach comesBack fewestProcessors UseFewProcessors onSpentThread onItsOwnThread
	killPatience forkPatience entryPatience strangerPatience relativePatience answerPatience leftoverPatience scarcePatience sandboxPatience`

// kept is what must keep an old word: names on disk and between versions, and a log message.
var kept = regexp.MustCompile("json:\"[^\"]*\"|trl-ledger|Msg\\(\"ledger\"\\)|\"vacate\"")

func TestOldWordsAreGone(t *testing.T) {
	words, names := map[string]bool{}, map[string]bool{}
	for _, w := range strings.Fields(oldWords) {
		words[w] = true
	}
	for _, n := range strings.Fields(oldNames) {
		names[n] = true
	}
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "bin"):
			return fs.SkipDir
		case path.Base(name) == "words_test.go" || name == "CHANGELOG.md":
			return nil
		case !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".md"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			for _, token := range strings.FieldsFunc(kept.ReplaceAllString(line, ""), func(r rune) bool { return !unicode.IsLetter(r) }) {
				if names[token] && strings.HasSuffix(name, ".go") && !strings.Contains(line, "// ") {
					t.Errorf("%s:%d: %q: see docs/GLOSSARY.md for the word to use", name, n, token)
				}
				for _, part := range parts(token) {
					if words[strings.ToLower(part)] {
						t.Errorf("%s:%d: %q: see docs/GLOSSARY.md for the word to use", name, n, token)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// parts are the words of a name: cgroupRoot has cgroup and Root.
func parts(name string) (all []string) {
	from := 0
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			all = append(all, name[from:i])
			from = i
		}
	}
	return append(all, name[from:])
}
