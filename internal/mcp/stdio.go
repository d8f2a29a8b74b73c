package mcp

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// parentCheck is how often ServeStdio looks whether its parent is still there. A death signal (prctl) would not do: it comes when the thread ends
	// that started us, which in a Go or Node program may be long before the program does.
	parentCheck = 5 * time.Second
	// endTimeout is how long ServeStdio tries to end its sessions.
	endTimeout = 20 * time.Second
)

// ServeStdio serves one client on stdin and stdout, until stdin ends and every request that was read is answered (at most answerTimeout later), a signal
// asks us to end, or our parent is gone. Then it ends the sessions that it made, unless keep is set. Calls in flight end with the program.
func ServeStdio(ctx context.Context, c Config, keep bool) error {
	parent := os.Getppid()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	served := make(chan error, 1)
	go func() { // ends soon after the end of stdin, or with the program
		served <- NewServer(c).Run(ctx, answerAll{&sdk.StdioTransport{}, answerTimeout})
	}()
	look := time.NewTicker(parentCheck)
	defer look.Stop()
	var err error
	for waiting := true; waiting; {
		select {
		case err = <-served:
			waiting = false
		case <-signals:
			waiting = false
		case <-look.C:
			waiting = os.Getppid() == parent
		}
	}
	if keep || !c.Sessions.Made() {
		return err
	}
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer stop()
	conn, e := c.Dial(ending)
	if e != nil {
		return errors.Join(err, e)
	}
	defer conn.Close()
	return errors.Join(err, c.Sessions.End(ending, conn))
}
