package config

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// TestReferenceIsCurrent compares the generated files with the committed ones. With TRL_UPDATE=1 (make generate) it writes them.
func TestReferenceIsCurrent(t *testing.T) {
	update := os.Getenv("TRL_UPDATE") == "1"
	withoutVariables(t)
	const page, schema = "../../docs/configuration.md", "../../docs/configuration.schema.json"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	marks := regexp.MustCompile(`(?s)(<!-- trl config reference -->\n\n).*?(\n<!-- end -->)`)
	if !marks.Match(text) {
		t.Fatalf("no place for the table in %s", page)
	}
	want := marks.ReplaceAllString(string(text), "${1}"+strings.ReplaceAll(configReference(), "$", "$$")+"${2}")
	if update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(schema, []byte(configSchema()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s is not what the flags say: make generate", page)
	}
	if text, err := os.ReadFile(schema); err != nil || string(text) != configSchema() {
		t.Errorf("%s is not what the flags say: make generate (%v)", schema, err)
	}
}

// TestSchemaAgreesWithTheLoader: the schema accepts the same files as the loader.
func TestSchemaAgreesWithTheLoader(t *testing.T) {
	withoutVariables(t)
	var s jsonschema.Schema
	if err := json.Unmarshal([]byte(configSchema()), &s); err != nil {
		t.Fatal(err)
	}
	schema, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{ // JSON is YAML
		`{}`, `{"max_sessions": 7}`, `{"max_sessions": "x"}`, `{"max_session": 7}`, `{"idle_timeout": "1h30m"}`, `{"idle_timeout": 0}`, `{"idle_timeout": 30}`,
		`{"idle_timeout": "soon"}`, `{"shells": ["sh", "bash"]}`, `{"shells": "sh"}`, `{"shells": [["sh"]]}`, `{"limit_memory": "512M"}`, `{"limit_memory": 1073741824}`,
		`{"limit_memory": "1X"}`, `{"insecure": true}`, `{"insecure": "yes"}`, `{"log_level": "loud"}`, `{"log_level": "warn"}`, `{"warm": [1]}`, `{"warm": null}`,
		`{"limit_cpu": 0.5}`, `{"pool": {"warm": 1}}`, `{"warm": 1.5}`,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		_, taken := ofText("f.yaml", text)
		if valid := schema.Validate(v); (valid == nil) != (taken == nil) {
			t.Errorf("%s: the schema says %v, trl %v", text, valid, taken)
		}
	}
}

// TestNoSettingIsASecret: `trl config print` and the log show values, so a secret must be in a file that a setting names.
func TestNoSettingIsASecret(t *testing.T) {
	smells := regexp.MustCompile(`secret|password|passphrase|credential|(^|-)(token|key)$`)
	for _, g := range allSettings() {
		if smells.MatchString(g.Name) && !slices.Contains([]string{"tls-key", "jwt-key", "oidc-client-secret-file", "cluster-secret", "cluster-key"}, g.Name) {
			t.Errorf("%s: name a file that holds it", g.Name)
		}
	}
	if got := withoutPassword("https://u:p@h/x"); strings.Contains(got, ":p@") {
		t.Error(got)
	}
}

// TestEverySettingIsDescribedAndReadBack: every setting has a description for the table in the docs, and accepts its own printed value,
// which a reload needs.
func TestEverySettingIsDescribedAndReadBack(t *testing.T) {
	for _, g := range allSettings() {
		if usage(g) == "" {
			t.Errorf("%s has no description", g.Name)
		}
		if err := assign(g, g.Name, texts(g.Value)); err != nil {
			t.Errorf("its own value: %v", err)
		}
	}
}
