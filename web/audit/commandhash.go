package audit

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// CommandPolicy says what the log has of a command's text.
type CommandPolicy string

const (
	// HashCommands shows whether two commands were the same, and, to a holder of the key, whether it was a given one. The hash has a key because most
	// commands are short and well known, so that a plain hash would reveal them.
	HashCommands   CommandPolicy = "hash"
	RedactCommands CommandPolicy = "redact" // only its length
	KeepCommands   CommandPolicy = "full"   // the text, including secrets in it
)

// maxText is how much of a command KeepCommands keeps.
const maxText = 16 << 10

// HashKeyFile returns the path of the key for HashCommands, beside the log.
func HashKeyFile(log string) string { return log + ".key" }

// A HashKey computes the hashes of commands.
type HashKey []byte

// ReadHashKey reads a key file.
func ReadHashKey(path string) (HashKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("audit key: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != sha256.Size {
		return nil, fmt.Errorf("audit key %s: not %d bytes in hex", path, sha256.Size)
	}
	return key, nil
}

// makeHashKey reads the key, and creates it if there is none. The file appears completely or not at all.
func makeHashKey(path string) (HashKey, error) {
	key, err := ReadHashKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".audit-key-") // 0600
	if err != nil {
		return nil, fmt.Errorf("audit key: %w", err)
	}
	defer os.Remove(f.Name())
	key = make(HashKey, sha256.Size)
	rand.Read(key) // never fails (crypto/rand)
	_, err = fmt.Fprintf(f, "%x\n", []byte(key))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Link(f.Name(), path)
	}
	if err != nil {
		return nil, fmt.Errorf("audit key: %w", err)
	}
	return key, nil
}

// Hash returns what a log with this key has in place of a command.
func (k HashKey) Hash(command string) string {
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte(command))
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))
}

// applyPolicy sets the fields that the log may have of Text.
func (e *Entry) applyPolicy(c CommandPolicy, k HashKey) {
	if e.Text == "" {
		return
	}
	e.CommandBytes = len(e.Text)
	switch c {
	case HashCommands:
		e.Command = k.Hash(e.Text)
	case KeepCommands:
		e.Command = strings.ToValidUTF8(e.Text[:min(len(e.Text), maxText)], "\uFFFD")
	}
	e.Text = ""
}
