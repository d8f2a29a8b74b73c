package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var ErrHashes = errors.New("a gateway's list, which contains hashes and no token")

// FirstToken reads the first token of a token file, or of a file that contains only one token.
func FirstToken(path string) (string, error) {
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
			none = ErrHashes
		default:
			return words[0], nil
		}
	}
	return "", fmt.Errorf("token file %s: %w", path, none)
}

// OperatorToken is the token of a state dir for this command line; "": there is none, and a server that needs one will refuse.
func OperatorToken(dir string) string {
	token, err := FirstToken(filepath.Join(dir, OperatorFile))
	if err != nil {
		token, _ = FirstToken(filepath.Join(dir, TokensFile)) // older versions kept the token itself there
	}
	return token
}
