package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"trl/internal/cmdline"
)

// usage is a flag's description without the name of its value, which only --help shows.
func usage(g *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(g)
	return text
}

// defaultValue is a default as a config file would have it; "" if it depends on the machine.
func defaultValue(g *pflag.Flag) (value any, described string) {
	if how := g.Annotations[variesMark]; how != nil {
		return nil, how[0]
	}
	value = fileValue(g)
	switch v := value.(type) {
	case string:
		described = v
	case []string:
		described = strings.Join(v, ", ")
	default:
		described = fmt.Sprint(v)
	}
	return value, described
}

// configSchema is the JSON Schema of the config file (draft 2020-12), generated from the flags.
func configSchema() string {
	properties := map[string]any{}
	for _, g := range allSettings() {
		p := map[string]any{"description": usage(g)}
		switch kind := g.Value.Type(); kind {
		case "bool":
			p["type"] = "boolean"
		case "int", "int64":
			p["type"] = "integer"
		case "float64":
			p["type"] = "number"
		case "duration":
			p["type"] = []string{"string", "integer"}
			p["pattern"] = `^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$`
			p["maximum"], p["minimum"] = 0, 0 // a number without a unit must be 0
		case "size":
			p["type"] = []string{"integer", "string"}
			p["pattern"], p["minimum"] = `^[0-9]+[kKmMgGtT]?([iI]?[bB])?$`, 0
		case "stringSlice", "stringArray":
			p["type"] = []string{"array", "string"}
			p["items"] = map[string]any{"type": "string"}
		case "string":
			p["type"] = "string"
		}
		if of := g.Annotations[cmdline.ChoiceMark]; of != nil {
			p["enum"] = of
		}
		value, described := defaultValue(g)
		if value != nil {
			p["default"] = value
		} else {
			p["description"] = strings.TrimSuffix(usage(g), ".") + "; default: " + described
		}
		properties[keyName(g.Name)] = p
	}
	text, err := json.MarshalIndent(map[string]any{
		"$schema":              "https://json-schema.org/draft/2020-12/schema",
		"title":                "trl's config file",
		"type":                 "object",
		"additionalProperties": false,
		"properties":           properties,
	}, "", "  ")
	if err != nil {
		panic(err) // cannot happen: there are only maps, lists and texts
	}
	return string(text) + "\n"
}

// configReference is the table of all settings in docs/configuration.md, generated from the flags.
func configReference() string {
	var b strings.Builder
	b.WriteString("| Key | Variable | Type | Default | A change counts | Meaning |\n|---|---|---|---|---|---|\n")
	for _, g := range allSettings() {
		kind := cmp.Or(map[string]string{"stringSlice": "list", "int64": "int", "float64": "number"}[g.Value.Type()], g.Value.Type())
		if of := g.Annotations[cmdline.ChoiceMark]; of != nil {
			kind = "`" + strings.Join(of, "`, `") + "`"
		}
		value, described := defaultValue(g)
		if value != nil && described != "" {
			described = "`" + described + "`"
		}
		if described == "" {
			described = "none"
		}
		when := "restart"
		if at := g.Annotations[liveMark]; at != nil {
			when = at[0]
		}
		cells := []string{"`" + keyName(g.Name) + "`", "`" + envName(g.Name) + "`", kind, described, when, usage(g)}
		for i := range cells {
			cells[i] = strings.NewReplacer("|", "\\|", "\n", " ").Replace(cells[i])
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return b.String()
}
