package dialect

import "strings"

// This file guesses what a command does from its text alone.

// briefWords are builtins that take almost no time and do not end the shell.
var briefWords = map[string]bool{
	":": true, "true": true, "false": true, "echo": true, "printf": true, "test": true, "[": true, "pwd": true, "cd": true,
	"export": true, "unset": true, "readonly": true, "declare": true, "typeset": true, "alias": true, "unalias": true,
	"shopt": true, "setopt": true, "unsetopt": true, "umask": true,
}

// maxBrief is the longest text that IsBrief checks.
const maxBrief = 256

// IsBrief tells whether text has only assignments and briefWords. A user who redefines these words gets fewer snapshots.
func IsBrief(text string) bool {
	if len(text) > maxBrief || strings.ContainsAny(text, "`()<>") {
		return false
	}
	for part := range strings.FieldsFuncSeq(text, func(c rune) bool { return strings.ContainsRune(";&|\n", c) }) {
		for word := range strings.FieldsSeq(part) {
			if name, _, assigns := strings.Cut(word, "="); assigns && !strings.ContainsAny(name, "'\"$\\") {
				continue
			}
			if !briefWords[word] {
				return false
			}
			break
		}
	}
	return true
}

// MayDefine tells whether text may define a function, directly or through a file or `eval`.
func MayDefine(text string) bool {
	for _, sign := range []string{". ", ".\t", ".\\", "eval"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	for found := true; found; {
		if _, text, found = strings.Cut(text, "("); found && strings.HasPrefix(strings.TrimLeft(text, " \t"), ")") {
			return true
		}
	}
	return false
}
