package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"trl/internal/cmdline"
)

// A config file is flat YAML: a key, which is a flag's name with - or _, and a value or a list of values. The loader refuses all other YAML
// and names the line, because a setting that it does not understand must not silently leave a default in force. It uses only the parser's
// syntax tree, which has the lines. It decodes nothing, so an alias cannot grow.

const (
	// maxConfig is some hundred times the longest sensible file, maxEntries some twenty times the number of settings.
	maxConfig  = 256 << 10
	maxEntries = 1000
)

// configEntry is one setting of a config file. Its values are texts for the flag.
type configEntry struct {
	line, column int
	key          string // as written in the file
	values       []string
	list         bool
}

// setting returns the flag's name.
func (e *configEntry) setting() string { return strings.ReplaceAll(e.key, "_", "-") }

// configFault is a mistake in a config file; line 0: it concerns the whole file.
type configFault struct {
	line, column int
	text, hint   string
}

func (f *configFault) at(file string) error {
	switch {
	case f.line == 0:
		file = "config file " + file
	case f.column == 0:
		file = fmt.Sprintf("%s:%d", file, f.line)
	default:
		file = fmt.Sprintf("%s:%d:%d", file, f.line, f.column)
	}
	return cmdline.WithHint(fmt.Errorf("%s: %s", file, f.text), "%s", f.hint)
}

const (
	hintSettings = "see `trl serve --help` for the settings"
	wantValue    = "a value or a list of values wanted"
)

// ReadFile reads a config file.
func ReadFile(path string) ([]byte, error) {
	text, err := readBounded(path)
	if err != nil {
		return nil, cmdline.WithHint(fmt.Errorf("config file %s: %w", path, err), hintSettings)
	}
	return text, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // so that a FIFO without a writer does not block us
	if err != nil {
		if e := (*os.PathError)(nil); errors.As(err, &e) {
			err = e.Err // the caller names the file
		}
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("not a regular file"), err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("longer than %d bytes", maxConfig)
	}
	return text, err
}

// parseConfig reads the text of the config file name. It returns the entries that it could read, each key once, and the faults.
func parseConfig(name string, text []byte) (entries []configEntry, faults []configFault) {
	if f := unreadable(text); f != nil {
		return nil, []configFault{*f}
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml":
		entries, faults = parseYAML(text)
	case ".toml":
		return nil, []configFault{{text: "TOML is not supported", hint: "write it as YAML, one `key: value` a line, and name it .yaml"}}
	default:
		return nil, []configFault{{text: "unknown format", hint: "name it .yaml"}}
	}
	if len(entries) > maxEntries {
		faults = append(faults, configFault{line: entries[maxEntries].line, text: fmt.Sprintf("more than %d settings", maxEntries), hint: hintSettings})
		entries = entries[:maxEntries]
	}
	seen := map[string]configEntry{}
	once := entries[:0]
	for _, e := range entries {
		first, twice := seen[e.setting()]
		switch {
		case !twice:
			seen[e.setting()] = e
			once = append(once, e)
		case first.key == e.key:
			faults = append(faults, configFault{e.line, e.column, fmt.Sprintf("%s stands here and in line %d", e.key, first.line), "keep one of them"})
		default:
			faults = append(faults, configFault{e.line, e.column, fmt.Sprintf("%s and %s are the same setting", first.key, e.key), "keep one of them"})
		}
	}
	return once, faults
}

// unreadable finds what no editor shows: bytes that are not UTF-8, control characters, byte order marks.
func unreadable(text []byte) *configFault {
	line, column := 1, 1
	for i, r := range string(text) {
		switch {
		case r == utf8.RuneError && !bytes.HasPrefix(text[i:], []byte("\uFFFD")):
			return &configFault{line, column, "not UTF-8", "save it as UTF-8"}
		case unicode.IsControl(r) && !strings.ContainsRune("\t\n\r\u0085", r), r == '\uFEFF' && i > 0, r == '\uFFFE', r == '\uFFFF':
			return &configFault{line, column, fmt.Sprintf("a control character, %U", r), "leave it out"}
		case r == '\n':
			line, column = line+1, 0
		}
		column++
	}
	return nil
}

// syntaxFault finds the line of a YAML syntax error. The message names the line unless it is the first. Errors of the parser count lines
// from 0, those of the scanner from 1.
func syntaxFault(err error) configFault {
	f := configFault{line: 1, text: strings.TrimPrefix(err.Error(), "yaml: "), hint: "write one `key: value` a line"}
	if m := yamlLine.FindStringSubmatch(f.text); m != nil {
		f.line, _ = strconv.Atoi(m[1])
		f.text = strings.TrimPrefix(f.text, m[0])
		if yamlParser.MatchString(f.text) {
			f.line++
		}
	}
	if strings.HasPrefix(f.text, "unknown anchor") {
		f.line = 0
	}
	return f
}

var (
	yamlLine   = regexp.MustCompile(`^line (\d+): `)
	yamlParser = regexp.MustCompile(`^(did not find expected (<|node content|key$|'-' indicator|',' or)|found undefined tag|found duplicate %|found incompatible)`)
)

func parseYAML(text []byte) (entries []configEntry, faults []configFault) {
	at := func(n *yaml.Node, hint, format string, args ...any) {
		faults = append(faults, configFault{n.Line, n.Column, fmt.Sprintf(format, args...), hint})
	}
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) { // only comments, or nothing
		return nil, nil
	}
	if err == nil {
		if err = d.Decode(&more); err == nil {
			at(&more, "keep one of them", "a second document")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		f := syntaxFault(err)
		f.line = min(f.line, 1+bytes.Count(bytes.TrimRight(text, "\n"), []byte("\n"))) // the parser reports a missing end after the last line
		return nil, append(faults, f)
	}
	root := &doc
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil, faults
	}
	if root.Kind != yaml.MappingNode {
		at(root, "write one `key: value` a line", "settings wanted")
		return nil, faults
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			at(key, hintSettings, "the name of a setting wanted")
			continue
		}
		e := configEntry{line: key.Line, column: key.Column, key: key.Value}
		all := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			e.list, all = true, value.Content
		}
		ok := true
		for _, n := range all {
			switch {
			case n.Kind == yaml.AliasNode:
				at(n, "write the value itself", "%s: aliases are not supported", e.key)
				ok = false
			case n.Kind != yaml.ScalarNode || !plainTag(n.ShortTag()):
				at(n, hintSettings, "%s: %s", e.key, wantValue)
				ok = false
			}
			e.values = append(e.values, n.Value)
		}
		if !ok {
			e.values = nil
		}
		entries = append(entries, e)
	}
	return entries, faults
}

// plainTag says whether the value is a text that a flag may accept.
func plainTag(tag string) bool {
	switch tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp":
		return true
	}
	return false
}

// printableValue says whether a terminal, a log and a system call accept v as it is.
func printableValue(v string) bool { return !strings.ContainsFunc(v, unicode.IsControl) }
