// Package acceptance drives the real gateway from outside: its binary, its WebSocket, real shells. A test here stands for
// one line of the list of behaviours that must hold (docs/ACCEPTANCE.md says which test for which line) and looks only at
// what a user of that line would see. It has no code of its own.
package acceptance
