// Package confine runs processes with fewer rights: as other users, with Landlock rules, with a signal filter, or in a bwrap sandbox.
package confine

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"
)

// Account is the user that sessions (Config.SessionUser) or a gateway run as. With Last it is a range of uids, and each session gets its
// own.
type Account struct {
	Text   string // as in the setting
	Name   string // "": the uid has no entry
	Home   string // "": none
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary groups
	Last   uint32   // the range's last uid; 0: no range
}

// ParseAccount parses USER, UID, UID:GID and, if ranges is set, FROM-TO. It refuses root, which could reach everything.
func ParseAccount(text string, ranges bool) (*Account, error) {
	a := &Account{Text: text}
	if from, to, ok := strings.Cut(text, "-"); ok && isDigits(from) && isDigits(to) {
		first, err1 := parseID(from)
		last, err2 := parseID(to)
		switch err := errors.Join(err1, err2); {
		case err != nil:
			return nil, err
		case !ranges:
			return nil, errors.New("one user wanted, not a range")
		case first == 0 || first > last:
			return nil, errors.New("a range goes from a number above 0 to one that is not smaller")
		}
		a.UID, a.GID, a.Last = first, first, last
		return a, nil
	}
	name, group, hasGroup := strings.Cut(text, ":")
	var u *user.User
	var err error
	if isDigits(name) {
		if a.UID, err = parseID(name); err != nil {
			return nil, err
		}
		a.GID = a.UID
		u, _ = user.LookupId(name) // a uid needs no entry
	} else if u, err = user.Lookup(name); err != nil {
		return nil, err
	}
	if u != nil {
		if err := a.setFromDatabase(u); err != nil {
			return nil, err
		}
	}
	if hasGroup {
		if a.GID, err = parseID(group); err != nil {
			return nil, fmt.Errorf("group: %w", err)
		}
		a.Groups = nil
	}
	if a.UID == 0 {
		return nil, errors.New("that is root")
	}
	return a, nil
}

// setFromDatabase copies u's entry in the user database.
func (a *Account) setFromDatabase(u *user.User) (err error) {
	a.Name, a.Home = u.Username, u.HomeDir
	if a.UID, err = parseID(u.Uid); err != nil {
		return err
	}
	if a.GID, err = parseID(u.Gid); err != nil {
		return err
	}
	groups, err := u.GroupIds()
	if err != nil {
		return fmt.Errorf("groups of %s: %w", u.Username, err)
	}
	for _, text := range groups {
		if id, err := parseID(text); err == nil && id != a.GID {
			a.Groups = append(a.Groups, id)
		}
	}
	return nil
}

// Environment returns env with the variables that every login sets, unless env has them.
func (a *Account) Environment(uid uint32, env []string) []string {
	name, home := a.Name, a.Home
	if name == "" {
		name = strconv.FormatUint(uint64(uid), 10)
	}
	if home == "" {
		home = "/tmp"
	}
	out := env[:len(env):len(env)]
	for _, kv := range []string{"HOME=" + home, "USER=" + name, "LOGNAME=" + name} {
		key, _, _ := strings.Cut(kv, "=")
		if !hasVariable(env, key) {
			out = append(out, kv)
		}
	}
	return out
}

func hasVariable(env []string, name string) bool {
	for _, kv := range env {
		if rest, ok := strings.CutPrefix(kv, name); ok && strings.HasPrefix(rest, "=") {
			return true
		}
	}
	return false
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// parseID parses a uid or gid. It refuses the largest number, which means "none" to the kernel.
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, fmt.Errorf("%q is no user or group number", s)
	}
	return uint32(n), nil
}
