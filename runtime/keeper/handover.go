package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"trl/runtime/confine"
	"trl/runtime/host"
	"trl/runtime/keeper/wire"
)

// An upgrade also replaces the keeper, by an exec in place. The process stays, and with it its children, its descriptors under their
// numbers, and the gateway at the other end of the socket, which notices nothing. The keeper writes what only its memory has into a
// handover, and the next program reads it. Once the new program runs, there is no way back. Therefore the keeper first asks it whether it
// understands the handover (CheckHandover).

// handoverVar has the descriptor of the handover. With checkPrefix before it, the process only says whether it could take over.
const (
	handoverVar = "TRL_KEEPER_WILL"
	checkPrefix = "ask:"
)

const (
	pauseTimeout = 100 * time.Millisecond // wait for requests under way to end; the gateway's next requests wait meanwhile
	pauseRetry   = 500 * time.Millisecond // pause before another attempt
	checkTimeout = 10 * time.Second       // wait for the new program's answer
)

// Handover is the state that one keeper leaves to the next. A keeper refuses a handover with another Version.
type Handover struct {
	Version         int
	Program         string   // Config.Program
	Env             []string // Config.Env
	Held            []int    // Config.Held
	Listeners       []listener
	Signals         [2]int           // read and write end of the signal handler's pipe
	Ignored         []syscall.Signal `json:"Deaf"` // signals that are ignored only until the next keeper listens
	Numbers         wire.Numbers
	Host            host.HandoverState
	Epoch           string
	Generation      int
	Serial          uint64
	Remembered      []byte `json:"Recalled,omitzero"` // server.remembered
	SignalsFiltered bool   `json:"Shielded"`          // confine.InstallSignalFilter has succeeded. Not omitted where false: an older program must refuse the handover when it is asked
	Sessions        []savedSession
	Gateway         savedGateway
}

type listener struct {
	Name string
	FD   int
}

type savedGateway struct {
	Pid, Link int
	Began     time.Time
}

type savedSession struct {
	ID       string
	Closed   bool     // the group's processes have ended
	Held     [][2]int // number and descriptor
	Children []savedChild
}

type savedChild struct {
	Number   uint64
	Pid      int
	Ended    *wire.Status // its status, if it has been reaped
	Pidfd    int          // if it has been reaped; -1: none
	ExitSent bool         `json:"Told"` // its exit has been sent
	Released bool
}

// descriptors are all descriptors in the handover.
func (w *Handover) descriptors() []int {
	fds := append(w.Host.Files(), w.Signals[0], w.Signals[1], w.Gateway.Link)
	fds = append(fds, w.Held...)
	for _, l := range w.Listeners {
		fds = append(fds, l.FD)
	}
	for _, s := range w.Sessions {
		for _, held := range s.Held {
			fds = append(fds, held[1])
		}
		for _, c := range s.Children {
			if c.Ended != nil && c.Pidfd >= 0 {
				fds = append(fds, c.Pidfd)
			}
		}
	}
	return fds
}

// CheckHandover answers a keeper that asks whether this program could take over. asked: a keeper asked, and the process must now exit.
func CheckHandover() (asked bool, err error) {
	text, asked := strings.CutPrefix(os.Getenv(handoverVar), checkPrefix)
	if asked {
		_, err = readHandover(text)
	}
	return asked, err
}

// ReadHandover returns the handover for this process and sets the environment that is in it. It returns nil if there is no handover. It
// must run once, before anything else.
func ReadHandover() (*Handover, error) {
	text, ok := os.LookupEnv(handoverVar)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(handoverVar)
	w, err := readHandover(text)
	if err != nil {
		return nil, err
	}
	wire.SetEnviron(w.Env)
	wire.NameProcess()
	return w, nil
}

func readHandover(number string) (*Handover, error) {
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q: %w", handoverVar, number, fs.ErrInvalid)
	}
	text, err := wire.ReadSealed(fd)
	if err != nil {
		return nil, fmt.Errorf("handover of the keeper: %w", err)
	}
	unix.Close(fd)
	var v struct{ Version int }
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("handover of the keeper: %w", err)
	}
	if v.Version != wire.Version {
		return nil, &wire.VersionError{Keeper: v.Version, Gateway: wire.Version}
	}
	w := &Handover{}
	if err := json.Unmarshal(text, w, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("handover of the keeper: %w", err)
	}
	return w, nil
}

// Files returns the listeners as Config.Listeners wants them.
func (w *Handover) Files() (files []*os.File) {
	for _, l := range w.Listeners {
		files = append(files, os.NewFile(uintptr(l.FD), l.Name))
	}
	return files
}

// execSuccessor execs the gateways' program in our place. If it returns, nothing has changed; the error is errBusy or the reason.
func (k *keeper) execSuccessor() error {
	g := k.gateway
	if g == nil || k.next != nil || !g.serving() || k.host.WaitsForFileSystem() {
		return errBusy
	}
	resume, resting := k.server.pauseReading(g.link, pauseTimeout)
	defer resume()
	if !resting {
		return errBusy
	}
	return k.host.HandOver(func(b *host.HandoverState) error {
		select {
		case <-g.child.Exited(): // the handover has only running children; supervise is about to hear of this exit
			return errBusy
		default:
		}
		w := Handover{
			Version: wire.Version, Program: k.c.Program, Env: k.c.Env, Held: k.c.Held, Host: *b, Numbers: k.numbers(), SignalsFiltered: k.signalsFiltered,
			Signals: [2]int{k.signals.pipe, int(atomic.LoadInt32(&signalPipe))},
			Gateway: savedGateway{Pid: g.child.Pid(), Link: g.link.Descriptor(), Began: g.began},
		}
		for _, f := range k.c.Listeners {
			w.Listeners = append(w.Listeners, listener{f.Name(), int(f.Fd())})
		}
		k.server.mu.Lock()
		defer k.server.mu.Unlock()
		if !g.link.Idle() { // a child has ended meanwhile, and its exit is still queued
			return errBusy
		}
		k.server.handOverLocked(&w)
		ignored, restoreSignals := k.signals.ignoreSignals()
		defer restoreSignals()
		w.Ignored = ignored
		k.signals.mu.Lock()
		defer k.signals.mu.Unlock()
		if len(k.signals.accepted) > 0 { // signals that are read but not handled yet would be lost
			return errBusy
		}
		fd, err := w.seal()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return confine.Exec(k.exe.path, os.Args, []string{fmt.Sprint(handoverVar, "=", fd)}, append(w.descriptors(), fd))
	})
}

var errBusy = errors.New("requests are under way")

func (w *Handover) seal() (fd int, err error) {
	text, err := json.Marshal(w)
	if err != nil {
		return -1, err
	}
	return wire.SealedMemfd(text)
}

// checkSuccessor starts program to ask whether it understands our handover.
func checkSuccessor(program string) error {
	fd, err := (&Handover{Version: wire.Version}).seal()
	if err != nil {
		return err
	}
	handover := os.NewFile(uintptr(fd), "will")
	defer handover.Close()
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = []string{handoverVar + "=" + checkPrefix + "3"}
	cmd.ExtraFiles = []*os.File{handover}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := host.ForkOutsideSessions(cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// handOverLocked writes the server's state into w. mu is held, and no request is under way.
func (s *server) handOverLocked(w *Handover) {
	w.Epoch, w.Generation, w.Serial, w.Remembered = s.epoch, s.generation, s.serial, s.remembered
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		g := s.sessions[id]
		sw := savedSession{ID: id, Closed: g.closed}
		for number, fd := range g.held {
			sw.Held = append(sw.Held, [2]int{number, fd})
		}
		for _, number := range slices.Sorted(maps.Keys(g.children)) {
			p := g.children[number]
			cw := savedChild{Number: number, Pid: p.Pid(), Pidfd: p.Pidfd(), ExitSent: p.ended, Released: p.released}
			select {
			case <-p.Exited():
				cw.Ended = wire.StatusOf(p.Status())
			default:
			}
			sw.Children = append(sw.Children, cw)
		}
		w.Sessions = append(w.Sessions, sw)
	}
}

// restore fills the new server s from w and makes l, whose hello an earlier keeper has answered, the gateway's link. It must run before the
// first child ends, because there will be no hello that would report that.
func (s *server) restore(w *Handover, l *wire.Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.linkEnded = l, make(chan struct{})
	s.generation, s.serial, s.remembered = w.Generation, w.Serial, w.Remembered
	for _, sw := range w.Sessions {
		g := &session{id: sw.ID, closed: sw.Closed, scopes: map[int]*host.Scope{}, children: map[uint64]*process{}, held: map[int]int{}}
		if sw.Closed {
			g.Group = s.host.EndedGroup(sw.ID)
		} else {
			g.Group = s.host.Group(sw.ID)
			for _, c := range g.Scopes() {
				g.scopes[c.Number()] = c
			}
		}
		for _, held := range sw.Held {
			g.held[held[0]] = held[1]
		}
		for _, cw := range sw.Children {
			p := &process{number: cw.Number, session: g, ended: cw.ExitSent, released: cw.Released}
			if cw.Ended != nil {
				p.Child = host.EndedChild(cw.Pid, cw.Pidfd, cw.Ended.Status())
			} else {
				p.Child = s.host.RestoredChild(cw.Pid)
				p.DropPidfd()
			}
			g.children[p.number] = p
			if !p.ended {
				s.work.Go(func() { s.tellWhenExited(p) }) // ends with the child; wait waits for it
			}
		}
		s.sessions[g.id] = g
	}
}
