//go:build !crashpoints

// Package crashpoint lets a test kill the gateway between any two steps that outlive it: a write to the log of a session, a line to
// a shell, a report from one, a message to the keeper. Only a program built with the tag crashpoints has such points.
package crashpoint

// Here marks a point.
func Here(string) {}
