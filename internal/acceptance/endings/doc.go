// Package endings has the acceptance tests of ends: of a command that times out or is cancelled, of a process tree, a session and a gateway, and that nothing is left afterwards.
package endings
