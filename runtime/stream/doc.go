// Package stream moves the input and output of a session's commands, processes and terminals: pipes, a stdin buffer and PTYs whose
// other descriptors the keeper holds, and Copiers, which copy output into journals. If the gateway is killed, no byte is lost, and a
// Restorer gives the next gateway the same streams.
//
// The shell that makes a stream owns it and closes it.
package stream
