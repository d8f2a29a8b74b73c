package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var errHashes = errors.New("a gateway's list, which holds hashes and no token")

// firstToken reads the secret of the first token in a token file, or of a file that holds one token and nothing else.
func firstToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	none := errors.New("no token in it")
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case strings.HasPrefix(words[0], "sha256:"):
			none = errHashes
		default:
			return words[0], nil
		}
	}
	return "", fmt.Errorf("token file %s: %w", path, none)
}

// operatorToken is the one that a state dir has for this command line; "": --auth none, or the server will say so.
func operatorToken(dir string) string {
	token, err := firstToken(filepath.Join(dir, operatorFile))
	if err != nil {
		token, _ = firstToken(filepath.Join(dir, tokensFile)) // as it was made once
	}
	return token
}
