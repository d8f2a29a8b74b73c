// Package acceptance drives the real gateway from outside: its binary, its WebSocket, real shells. Each test stands for a line of the list
// of behaviours that must hold, and looks only at what a user of that line would see. The tests are in folders by topic; docs/ACCEPTANCE.md
// has the list and names the tests of each line, and the test of this package compares it with them.
package acceptance
