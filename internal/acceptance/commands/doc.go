// Package commands has the acceptance tests of commands: what they print and return, their input, the state that a shell keeps from one to the next, background processes, turns, and retries.
package commands
