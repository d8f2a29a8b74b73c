package auth

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/web/transport"
)

// PeerPrincipal returns the principal of a Unix connection, from the user that the kernel reports. Only the gateway's own user and root are let in,
// whatever the socket's mode says.
func PeerPrincipal(sock *transport.Socket) (Principal, error) {
	raw, err := sock.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return Principal{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Principal{}, err
	}
	if credErr != nil {
		return Principal{}, credErr
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return Principal{}, protocol.Errorf(protocol.AuthFailed, "this socket serves another user")
	}
	return Principal{Subject: "uid:" + strconv.Itoa(int(cred.Uid)), Role: Admin}, nil
}
