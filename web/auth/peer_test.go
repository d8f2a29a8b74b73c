package auth

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
	"trl/web/transport"
)

func TestPeerPrincipal(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	ours, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	who, err := PeerPrincipal(transport.NewSocket(ours, time.Minute, func() {}))
	if want := (Principal{Subject: fmt.Sprintf("uid:%d", os.Geteuid()), Role: Admin}); err != nil || who != want {
		t.Fatalf("%v %v", who, err)
	}
}
