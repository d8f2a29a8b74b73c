// Package streams has the acceptance tests of streams: output and its bounds, replay after a lost connection, the WebSocket and the protocol on it.
package streams
