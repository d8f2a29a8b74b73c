// Package python has the files of the Python client, as its users get them: `trl sdk python` writes the package, from which pip installs it or builds a
// wheel. So a client of the gateway's version is always at hand.
package python

import "embed"

// Files is the package: pyproject.toml, README.md and the sources.
//
//go:embed pyproject.toml README.md trl_client/*.py trl_client/py.typed trl_client/integrations/*.py
var Files embed.FS
