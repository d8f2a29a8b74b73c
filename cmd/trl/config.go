package main

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trl/web"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Check and show the gateway's settings",
		Long: `Check and show the gateway's settings.

They come from flags of trl serve, TRL_… in the environment, and a config file, in this order. All three can be given here, too:
what is said holds for trl serve with the same, by the same user, in the same place.`,
	}
	cmd.AddCommand(newConfigCheck(), newConfigPrint(), newConfigSchema(), newConfigReference())
	return cmd
}

func newConfigCheck() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use: "check [FILE]", Short: "Say whether trl serve would take a config file, and if not, why and in which line",
		Long: `Say whether trl serve would take a config file (FILE or --config), and if not, why and in which line: all that is wrong, at once.
Nothing is started or changed. The exit code is 1 if something is wrong. A variable TRL_… that is no setting is named, and is no error.`,
		Example: `  trl config check /etc/trl.yaml`,
		Args:    maybeOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if err := cmd.Flags().Set("config", args[0]); err != nil {
					return err
				}
			}
			for _, err := range unknownVariables() { // serve starts all the same
				printError(cmd.ErrOrStderr(), err)
			}
			var all faults
			all.add(s.load(cmd.Flags()))
			if s.web.TLSCert != "" && s.web.TLSKey != "" {
				if _, err := tls.LoadX509KeyPair(s.web.TLSCert, s.web.TLSKey); err != nil {
					all.add(errorWithHint(fmt.Errorf("%s: %w", s.source("tls-cert"), err), "check tls_cert and tls_key"))
				}
			}
			if j := s.credentials.jwt; j.KeyFile != "" || j.JWKS != "" {
				if keys, err := web.OpenJWT(j, zerolog.Nop()); err != nil {
					all.add(errorWithHint(err, hintJWT))
				} else {
					keys.Close()
				}
			}
			if s.config == "" && len(all) == 0 {
				return usageErrorWithHint(errors.New("no config file given"), "usage: trl config check FILE")
			}
			if err := all.err(); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", s.config)
			return err
		},
	}
	s.define(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}

func newConfigPrint() *cobra.Command {
	var s settings
	var format string
	cmd := &cobra.Command{
		Use: "print", Short: "Print every setting as trl serve would have it, and where it comes from",
		Long: `Print every setting as trl serve would have it, and where it comes from: a flag, the environment, a line of the config file, or nobody.
The output is a config file itself.`,
		Example: `  trl config print --config /etc/trl.yaml
  trl config print --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "yaml" && format != "json" {
				return usageErrorWithHint(fmt.Errorf("--format: %q", format), "want yaml or json")
			}
			if err := s.load(cmd.Flags()); err != nil {
				return err
			}
			if format == "json" {
				all := map[string]any{}
				for _, g := range allSettings() {
					all[keyName(g.Name)] = map[string]any{"value": fileValue(s.flags.Lookup(g.Name)), "source": s.origin(g.Name)}
				}
				return printJSON(cmd.OutOrStdout(), all)
			}
			return s.print(cmd.OutOrStdout())
		},
	}
	s.define(cmd.Flags())
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&format, "format", "yaml", "`yaml|json`")
	markChoice(cmd.Flags(), "format", "yaml", "json")
	return cmd
}

// origin is where a setting comes from: default, --flag, TRL_X or FILE:LINE.
func (s *settings) origin(name string) string {
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

func (s *settings) print(w io.Writer) error {
	var rows []string
	width := 0
	all := allSettings()
	for _, g := range all {
		value, err := json.Marshal(fileValue(s.flags.Lookup(g.Name))) // YAML holds all of JSON
		if err != nil {
			return err
		}
		row := keyName(g.Name) + ": " + string(value)
		rows = append(rows, row)
		width = max(width, min(len(row), 48))
	}
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "%-*s  # %s\n", width, row, printable(s.origin(all[i].Name)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fileValue is a flag's value as it stands in a config file. No setting is a secret, those are in files; but a URL may hold a password.
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
		return briefDuration(text)
	}
	return withoutPassword(text)
}

func withoutPassword(text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted()
	}
	return text
}

// briefDuration writes 4h0m0s as 4h.
func briefDuration(text string) string {
	for _, unit := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, unit) {
			text = text[:len(text)-2]
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d == 0 {
		return "0"
	}
	return text
}

func newConfigSchema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of the config file, for editors", Args: noArgs,
		Long: `Print the JSON Schema of the config file. Editors with a YAML language server use it for completion and checks if the file begins with

  # yaml-language-server: $schema=trl.schema.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), configSchema())
			return err
		},
	}
}

// newConfigReference is for docs/configuration.md.
func newConfigReference() *cobra.Command {
	return &cobra.Command{
		Use: "reference", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), configReference())
			return err
		},
	}
}

// usage is a flag's description without the name of its value, which only --help shows.
func usage(g *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(g)
	return text
}

// defaultValue is a default as it stands in a config file, "" for none: that of the machine that asks is nobody else's.
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

// configSchema is the JSON Schema of the config file (draft 2020-12), made from the flags.
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
			p["maximum"], p["minimum"] = 0, 0 // a number without a unit: 0 alone
		case "size":
			p["type"] = []string{"integer", "string"}
			p["pattern"], p["minimum"] = `^[0-9]+[kKmMgGtT]?([iI]?[bB])?$`, 0
		case "stringSlice", "stringArray":
			p["type"] = []string{"array", "string"}
			p["items"] = map[string]any{"type": "string"}
		case "string":
			p["type"] = "string"
		}
		if of := g.Annotations[choiceMark]; of != nil {
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
		panic(err) // maps, lists and texts
	}
	return string(text) + "\n"
}

// configReference is the table of all settings in docs/configuration.md, made from the flags.
func configReference() string {
	var b strings.Builder
	b.WriteString("| Key | Variable | Type | Default | A change counts | Meaning |\n|---|---|---|---|---|---|\n")
	for _, g := range allSettings() {
		kind := cmp.Or(map[string]string{"stringSlice": "list", "int64": "int", "float64": "number"}[g.Value.Type()], g.Value.Type())
		if of := g.Annotations[choiceMark]; of != nil {
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
