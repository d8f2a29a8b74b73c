// Package link connects two nodes of a cluster. A link carries the messages of one client's connection between the gateway that the client has dialled
// and the node that owns the client's session. A Dialer makes links, an Acceptor takes them, a Conn is one link after both ends have proved who they
// are, and Numbers maps the numbers of streams that a link carries.
package link
