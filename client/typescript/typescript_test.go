package typescript

import (
	"encoding/json"
	"testing"
)

// TestManifestHasNoDependencies: what users install brings no other package.
func TestManifestHasNoDependencies(t *testing.T) {
	text, err := Files.ReadFile("package.json")
	if err != nil {
		t.Fatal(err)
	}
	text = Manifest(text)
	var manifest map[string]any
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for name, there := range map[string]bool{"name": true, "exports": true, "devDependencies": false, "dependencies": false, "scripts": false} {
		if _, is := manifest[name]; is != there {
			t.Errorf("%s: %t, want %t", name, is, there)
		}
	}
}
