// Package terminals has the acceptance tests of terminals: sizes, typing, several viewers, full-screen programs, prompts for passwords, and the commands typed in them.
package terminals
