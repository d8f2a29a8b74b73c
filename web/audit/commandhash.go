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

// CommandPolicy is what is written of a command's text.
type CommandPolicy string

const (
	// HashCommands tells whether two commands were the same, and, to who has the key, whether it was a given one. It is keyed: most
	// commands are short and well known, and a plain hash of `ls` is as good as `ls`.
	HashCommands   CommandPolicy = "hash"
	RedactCommands CommandPolicy = "redact" // its length alone
	KeepCommands   CommandPolicy = "full"   // the text, secrets in it included
)

// maxText is what Full keeps of one command.
const maxText = 16 << 10

// HashKeyFile is where the key of Hash is, beside the log.
func HashKeyFile(log string) string { return log + ".key" }

// A HashKey makes the hashes of commands.
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

// makeHashKey reads the key, and makes it where there is none. It appears whole or not at all.
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

// Hash is what stands for a command in a log with this key.
func (k HashKey) Hash(command string) string {
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte(command))
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))
}

// applyPolicy turns Text into what may be written.
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
