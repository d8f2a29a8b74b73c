package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"trl/internal/cmdline"
	"trl/protocol"
	"trl/runtime/keeper/client"
)

// Where settings come from: a flag takes precedence over TRL_… in the environment, and that over the config file. The flags are the one
// list of settings. The other two sources set the same flags, so every value is parsed and refused in one way. Only the file may change
// while trl runs, and only its live settings are then applied; the others stay as they were when the keeper started.

// Annotations of flags.
const (
	liveMark   = "live"    // a changed value counts without a restart; the value says for what
	variesMark = "default" // the default depends on the machine; the value says how
)

// markLive marks settings that a reload applies. when says for what a new value counts. configReloader.apply (internal/serve) must handle
// them.
func markLive(f *pflag.FlagSet, when string, names ...string) {
	cmdline.Mark(f, liveMark, []string{when}, names...)
}

// markVaries describes a default that depends on the machine.
func markVaries(f *pflag.FlagSet, name, how string) { cmdline.Mark(f, variesMark, []string{how}, name) }

// allSettings are the flags that are keys of the config file, in their order and with their defaults.
func allSettings() (all []*pflag.Flag) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SortFlags = false
	(&Settings{}).Define(f)
	f.VisitAll(func(g *pflag.Flag) {
		if g.Name != "config" {
			all = append(all, g)
		}
	})
	return all
}

// Source names the source of a setting, for messages.
func (s *Settings) Source(name string) string {
	if source := s.setBy[name]; source != "" {
		return source
	}
	return "--" + name
}

// IsSet says whether a source has set the setting.
func (s *Settings) IsSet(name string) bool { return s.setBy[name] != "" }

// envName is the environment variable of a setting: max-sessions → TRL_MAX_SESSIONS.
func envName(flag string) string {
	return "TRL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// otherVariables are the variables of trl that are no settings: those of the command line and of sessions. Variables that one process of a
// gateway passes to another begin with one of otherPrefixes.
var (
	otherVariables = []string{"TRL_URL", "TRL_TOKEN", "TRL_SESSION_ID", SandboxedVar, TokensNewVar, firstVar}
	otherPrefixes  = []string{"TRL_KEEPER_", "TRL_TEST_"}
)

// In Kubernetes every pod has variables for every Service, also for a Service that is called trl.
var serviceVariable = regexp.MustCompile(`^\w+_(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT=(tcp|udp|sctp)://|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?=)`)

// UnknownVariables returns an error for each TRL_… in the environment that sets nothing, with the closest setting as the hint.
func UnknownVariables() (all []error) {
	known := slices.Clone(otherVariables)
	for _, g := range append(allSettings(), &pflag.Flag{Name: "config"}) {
		known = append(known, envName(g.Name))
	}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if value == "" || !strings.HasPrefix(name, "TRL_") || slices.Contains(known, name) || serviceVariable.MatchString(kv) ||
			slices.ContainsFunc(otherPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		hint := hintSettings
		if near := protocol.Nearest(name, known); near != "" {
			hint = "did you mean " + near + "?"
		}
		all = append(all, cmdline.WithHint(fmt.Errorf("%s: no setting has this variable", name), "%s", hint))
	}
	return all
}

// keyName is the key of a flag in the config file.
func keyName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// Resolve returns the settings for this process. The first keeper uses s. Gateways take the live settings from the file and the others from
// the text with which their keeper started. goesOn: this process is a keeper after an upgrade.
func (s *Settings) Resolve(f *pflag.FlagSet, goesOn bool) (*Settings, error) {
	s.checkedByKeeper = goesOn || client.Started()
	first, later := takeFirst()
	last, replaces := client.Remembered()
	switch {
	case !later:
		return s, s.load(f)
	case goesOn:
		return s.resumeKeeper(f, first), nil
	}
	if err := s.readSources(f, nil); err != nil {
		return s, err
	}
	base, err := s.WithFile(first)
	if err != nil {
		return s, err
	}
	text, err := ReadFile(s.File)
	next := base
	if err == nil {
		next, err = base.WithFile(text)
	}
	if err != nil {
		if !replaces { // the gateway that serves continues
			return s, err
		}
		refused := err
		if next, err = base.WithFile(last); err != nil {
			next = base // the keeper accepted it
		}
		next.FileError = refused
	}
	_, next.NeedRestart = next.KeepFixed(base)
	return next, nil
}

// resumeKeeper is Resolve for a keeper after an upgrade. It must not fail, because the keeper has the sessions. The first keeper settled
// everything that a keeper needs.
func (s *Settings) resumeKeeper(f *pflag.FlagSet, first []byte) *Settings {
	_ = s.readSources(f, nil) // WithFile reports the same errors
	next, err := s.WithFile(first)
	if err == nil {
		return next
	}
	refused := err // the new program refuses a text that the old one accepted
	text, err := ReadFile(s.File)
	if err == nil {
		next, err = s.WithFile(text)
	}
	if err != nil {
		next, _ = s.WithFile(nil)
	}
	next.FileError = refused
	return next
}

// firstVar passes the text of the config file, as the first keeper read it, to gateways and to the keeper after an upgrade, in base64.
const firstVar = "TRL_CONFIG_FIRST"

func takeFirst() (text []byte, ok bool) {
	encoded, ok := os.LookupEnv(firstVar)
	os.Unsetenv(firstVar)
	text, err := base64.StdEncoding.DecodeString(encoded)
	return text, ok && err == nil
}

// PassFile adds the text of the config file to the environment of gateways.
func (s *Settings) PassFile(env []string) []string {
	if s.File == "" {
		return env
	}
	return append(env[:len(env):len(env)], firstVar+"="+base64.StdEncoding.EncodeToString(s.FileText))
}

// load sets from the environment and the config file what no flag has set, and checks all settings.
func (s *Settings) load(f *pflag.FlagSet) error {
	var all cmdline.Faults
	all.Add(s.readSources(f, nil))
	var text []byte
	if s.File != "" {
		var err error
		if text, err = ReadFile(s.File); err != nil {
			all.Add(err)
			return all.Err()
		}
	}
	all.Add(s.read(text))
	return all.Err()
}

// WithFile returns the settings with another text of the config file, and with the same flags and environment.
func (s *Settings) WithFile(text []byte) (*Settings, error) {
	next := &Settings{checkedByKeeper: s.checkedByKeeper}
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	next.Define(f)
	var all cmdline.Faults
	all.Add(next.readSources(f, s.typed))
	all.Add(next.read(text))
	return next, all.Err()
}

// readSources reads the command line and the environment. typed has the flags of the command line, if f has not parsed it itself.
func (s *Settings) readSources(f *pflag.FlagSet, typed map[string][]string) error {
	s.flags, s.typed, s.setBy = f, typed, map[string]string{}
	if typed == nil {
		s.typed = map[string][]string{}
		f.Visit(func(g *pflag.Flag) { s.typed[g.Name] = texts(g.Value) })
	}
	var all cmdline.Faults
	for name, values := range s.typed {
		g := f.Lookup(name)
		if g == nil { // a flag of another command, which is no setting
			continue
		}
		if typed != nil {
			all.Add(assign(g, "--"+name, values))
		}
		s.setBy[name] = "--" + name
	}
	f.VisitAll(func(g *pflag.Flag) {
		name := envName(g.Name)
		value := os.Getenv(name) // an empty variable counts as unset, as in most programs
		if value == "" || s.setBy[g.Name] != "" || g.Name == "help" {
			return
		}
		all.Add(assign(g, name, split(g, value)))
		s.setBy[g.Name] = name
	})
	return all.Err()
}

// texts returns a flag's value in the form that assign accepts.
func texts(v pflag.Value) []string {
	if list, ok := v.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{v.String()}
}

// split splits a text into the values of a flag, if the flag is a list.
func split(g *pflag.Flag, text string) []string {
	if _, list := g.Value.(pflag.SliceValue); list {
		return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
	}
	return []string{text}
}

// assign sets a flag. source names the source in errors.
func assign(g *pflag.Flag, source string, values []string) (err error) {
	before := texts(g.Value)
	if list, ok := g.Value.(pflag.SliceValue); ok {
		err = list.Replace(values)
	} else if len(values) != 1 {
		err = errors.New("one value wanted")
	} else {
		err = g.Value.Set(values[0])
	}
	if err != nil {
		if !isList(g) {
			_ = g.Value.Set(before[0]) // pflag has set numbers to 0, and check would complain about that
		}
		if e := (*strconv.NumError)(nil); errors.As(err, &e) {
			err = e.Err // the text contains the value already
		}
		return cmdline.WithHint(fmt.Errorf("%s: %q is not a valid %s: %w", source, strings.Join(values, ","), g.Value.Type(), err), "%s", describeType(g.Value.Type()))
	}
	return nil
}

// describeType says how to write a value of a type.
func describeType(kind string) string {
	switch kind {
	case "duration":
		return "write 30s, 10m, 4h, or 0"
	case "bool":
		return "write true or false"
	case "size":
		return "K, M, G and T are of 1024"
	case "int", "int64":
		return "write a whole number"
	case "float64":
		return "write a number"
	}
	return "see `trl serve --help`"
}

// read applies text, the content of the config file, where neither command line nor environment set a value, and checks all settings. It
// also checks the values that they override.
func (s *Settings) read(text []byte) error {
	s.FileText = text
	var all cmdline.Faults
	if s.File != "" {
		entries, wrong := parseConfig(s.File, text)
		found := map[int]cmdline.Faults{} // by line
		add := func(line int, err error) {
			of := found[line]
			of.Add(err)
			found[line] = of
		}
		for _, f := range wrong {
			add(f.line, f.at(s.File))
		}
		known := map[string]*pflag.Flag{}
		for _, g := range allSettings() {
			known[g.Name] = g
		}
		for _, e := range entries {
			add(e.line, s.applyEntry(e, known))
		}
		for _, line := range slices.Sorted(maps.Keys(found)) {
			all.Add(found[line])
		}
	}
	all.Add(s.check(s.Source))
	return all.Err()
}

// applyEntry applies an entry. known has a scratch flag for each setting; their values do not matter.
func (s *Settings) applyEntry(e configEntry, known map[string]*pflag.Flag) error {
	at := fmt.Sprintf("%s:%d", s.File, e.line)
	name := e.setting()
	spare := known[name]
	if spare == nil {
		return s.unknown(e, slices.Collect(maps.Keys(known)))
	}
	g := s.flags.Lookup(name)
	if e.values == nil && !e.list {
		return nil // parseConfig has reported why
	}
	values := e.values
	for _, v := range values {
		if !printableValue(v) {
			return cmdline.WithHint(fmt.Errorf("%s: %s: a control character", at, e.key), "leave it out")
		}
	}
	if len(values) == 1 && !e.list {
		values = split(g, values[0])
	}
	if e.list && !isList(g) {
		return cmdline.WithHint(fmt.Errorf("%s: %s: one value wanted", at, e.key), "%s", describeType(g.Value.Type()))
	}
	if s.setBy[name] != "" {
		return assign(spare, at+": "+e.key, values)
	}
	s.setBy[name] = at + ": " + e.key
	return assign(g, at+": "+e.key, values)
}

func isList(g *pflag.Flag) bool { _, list := g.Value.(pflag.SliceValue); return list }

func (s *Settings) unknown(e configEntry, names []string) error {
	slices.Sort(names) // so that the same one wins among equally near names
	last := e.setting()[strings.LastIndexByte(e.key, '.')+1:]
	hint := hintSettings
	if slices.Contains(names, last) { // for example pool.warm
		hint = "settings have no section: " + keyName(last)
	} else if near := protocol.Nearest(last, names); near != "" {
		hint = "did you mean " + keyName(near) + "?"
	}
	return (&configFault{e.line, e.column, fmt.Sprintf("unknown key %q", cmdline.Shorten(e.key, 80)), hint}).at(s.File)
}

// KeepFixed takes every setting that is not live from now. changed are the live settings that differ from now, waiting those that need a
// restart.
func (s *Settings) KeepFixed(now *Settings) (changed, waiting []string) {
	switchesTLS := (s.Web.TLSCert == "") != (now.Web.TLSCert == "") // certificates may change, but the listener cannot switch TLS on or off
	s.flags.VisitAll(func(g *pflag.Flag) {
		old := now.flags.Lookup(g.Name)
		if old == nil || slices.Equal(texts(old.Value), texts(g.Value)) {
			return
		}
		tls := g.Name == "tls-cert" || g.Name == "tls-key"
		if g.Annotations[liveMark] != nil && !(tls && switchesTLS) {
			changed = append(changed, keyName(g.Name))
			return
		}
		if s.IsSet(g.Name) || now.IsSet(g.Name) { // otherwise it was derived from another setting
			waiting = append(waiting, keyName(g.Name))
		}
		_ = assign(g, "", texts(old.Value)) // it was accepted before
		s.setBy[g.Name] = now.setBy[g.Name]
	})
	s.SessionUser, s.GatewayUser = now.SessionUser, now.GatewayUser
	return changed, waiting
}

// SandboxedVar tells a keeper that it is in the sandbox, and which process represents it outside.
const SandboxedVar = "TRL_SANDBOXED"

// TokensNewVar tells a gateway that the keeper has just made its tokens.
const TokensNewVar = "TRL_TOKENS_NEW" // #nosec G101 -- a name
