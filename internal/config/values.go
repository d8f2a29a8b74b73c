package config

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/spf13/pflag"

	"trl/internal/cmdline"
)

// origin is the source of a setting: default, --flag, TRL_X or FILE:LINE.
func (s *Settings) origin(name string) string {
	source := s.setBy[name]
	if place, ok := strings.CutSuffix(source, ": "+keyName(name)); ok {
		return place
	}
	if place, ok := strings.CutSuffix(source, ": "+name); ok {
		return place
	}
	if source == "" {
		return "default"
	}
	return source
}

func (s *Settings) print(w io.Writer) error {
	var rows []string
	width := 0
	all := allSettings()
	for _, g := range all {
		value, err := json.Marshal(fileValue(s.flags.Lookup(g.Name))) // JSON is valid YAML
		if err != nil {
			return err
		}
		row := keyName(g.Name) + ": " + string(value)
		rows = append(rows, row)
		width = max(width, min(len(row), 48))
	}
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "%-*s  # %s\n", width, row, cmdline.Printable(s.origin(all[i].Name)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fileValue is a flag's value as a config file would have it. No setting is a secret, but a URL may contain a password, which fileValue
// removes.
func fileValue(g *pflag.Flag) any {
	if list, ok := g.Value.(pflag.SliceValue); ok {
		all := []string{}
		for _, v := range list.GetSlice() {
			all = append(all, withoutPassword(v))
		}
		return all
	}
	text := g.Value.String()
	switch g.Value.Type() {
	case "bool":
		return text == "true"
	case "int", "int64", "size":
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	case "float64":
		if x, err := strconv.ParseFloat(text, 64); err == nil {
			return x
		}
	case "duration":
		return cmdline.BriefDuration(text)
	}
	return withoutPassword(text)
}

func withoutPassword(text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted()
	}
	return text
}
