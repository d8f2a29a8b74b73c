// Command sbom writes the bill of materials of a Go program, as SPDX 2.3 JSON: the modules that the linker recorded in it.
//
//	go run ./internal/sbom PROGRAM VERSION SECONDS    (the time of the commit, since 1970)
//
// cyclonedx-gomod does the same but has dozens of dependencies. The program itself contains the list of its modules.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type pkg struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo"`
	Download  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Concluded string      `json:"licenseConcluded"`
	Declared  string      `json:"licenseDeclared"`
	Copyright string      `json:"copyrightText"`
	Comment   string      `json:"comment,omitempty"`
	Checksums []checksum  `json:"checksums,omitempty"`
	External  []reference `json:"externalRefs,omitempty"`
}

type relation struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: sbom PROGRAM VERSION SECONDS")
	}
	seconds, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	program, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(program))
	const none = "NOASSERTION"
	packages := []pkg{{
		ID: "SPDXRef-trl", Name: filepath.Base(args[0]), Version: args[1], Download: none, Concluded: "Apache-2.0", Declared: "Apache-2.0", Copyright: none,
		Checksums: []checksum{{"SHA256", sum}},
	}, {
		ID: "SPDXRef-go", Name: "std", Version: info.GoVersion, Download: none, Concluded: none, Declared: "BSD-3-Clause", Copyright: none,
		External: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/std@" + info.GoVersion[len("go"):]}},
	}}
	relations := []relation{{"SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-trl"}, {"SPDXRef-trl", "DEPENDS_ON", "SPDXRef-go"}}
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		id := fmt.Sprintf("SPDXRef-module-%d", i+1)
		p := pkg{ID: id, Name: m.Path, Version: m.Version, Download: none, Concluded: none, Declared: none, Copyright: none,
			External: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}}}
		if m.Sum != "" {
			p.Comment = "go.sum: " + m.Sum
		}
		packages = append(packages, p)
		relations = append(relations, relation{"SPDXRef-trl", "DEPENDS_ON", id})
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	out.SetEscapeHTML(false)
	return out.Encode(map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": filepath.Base(args[0]) + " " + args[1],
		"documentNamespace": "urn:sha256:" + sum,
		"creationInfo":      map[string]any{"created": time.Unix(seconds, 0).UTC().Format(time.RFC3339), "creators": []string{"Tool: trl internal/sbom"}},
		"packages":          packages, "relationships": relations,
	})
}
