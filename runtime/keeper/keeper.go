// Package keeper is the process that owns all other processes of trl. Gateways, which may end at any moment, use it over a socket.
//
// Run is the keeper. It has the host.Host, starts the gateway, which is the same program, and starts it again when it dies. The
// gateway's end of the socket is in keeper/client, the messages are in keeper/wire. The processes of sessions are children of the keeper.
// The keeper holds the descriptors that must outlive a gateway (Hold), so a new gateway finds everything as the old one left it. The keeper
// reads no output and does not listen to the network. An upgrade replaces the keeper itself by an exec in place (Handover).
//
// When the keeper dies, the kernel closes the socket: Client.Done closes in the gateway, and the gateway ends.
package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/metrics"
	"trl/runtime/confine"
	"trl/runtime/host"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

const (
	gatewayStopTimeout   = 15 * time.Second // for the gateway's orderly end: the sessions' grace periods and a reserve
	connectionEndTimeout = 5 * time.Second  // between the end of a gateway and the end of its connection, whichever comes first
	firstRestartPause    = 100 * time.Millisecond
	takeOverTimeout      = 30 * time.Second // for a successor to serve and its predecessor to exit
	maxRestartPause      = 5 * time.Second  // between starts, so that a gateway that cannot start does not use up a core
	stableAfter          = time.Second      // a gateway that lived for so long is restarted at once; one that dies again and again thus costs a tenth of a core at most
	crashesToReport      = 5                // crashes in a row after which the log asks for a person
)

// Config configures a keeper.
type Config struct {
	Host      host.Config   // its Metrics are the keeper's own, see client.Client.Numbers
	Listeners []*os.File    // for every gateway; their names say what they are
	Args, Env []string      // for gateways, which are this program
	Program   string        // the program that an upgrade (SIGHUP, SIGUSR1) starts; empty: no upgrades
	Upgraded  func(error)   // called with the outcome of an upgrade; may be nil
	Drain     time.Duration // above 0: the first TERM only begins a drain of the gateway, which may take so long; the next TERM stops it
	Notify    func(string)  // called with the states of sd_notify(3), for a supervisor; may be nil
	Watchdog  time.Duration // how often Notify reports that we are alive; 0: never
	// Check is called before the first gateway starts; Run returns its error. nil: every tier is accepted.
	Check    func(tiers []own.TierReport) error
	Held     []int     // descriptors of the caller that must stay open across an exec in place, see Handover.Held
	Handover *Handover // the state of the keeper that this one continues; nil: none
	Log      zerolog.Logger
}

// keeper is the state of Run. supervise owns all fields without another rule.
type keeper struct {
	c               Config
	host            *host.Host
	server          *server
	signals         *signals
	signalsFiltered bool          // see filterSignals
	crashes         atomic.Uint64 // ends of gateways that were not requested
	counts          prometheus.Gatherer
	earlierNumbers  wire.Numbers // of the keepers before us

	gateway       *gateway // nil: none runs at the moment
	crashesInARow int      // crashes since a gateway last lived for stableAfter

	exe     program  // the program of gateways
	next    *gateway // a gateway that starts and will replace gateway; nil: no upgrade is under way, or next has become gateway
	nextExe program  // program of next, and of gateway until it serves; zero: no upgrade is under way

	replacing bool // the upgrade's gateway serves, and the keeper will replace itself next
}

// program is an executable file. It stays the same file if another one gets its name.
type program struct {
	path string
	file *os.File // the open file behind path; nil for our own program
}

var ownProgram = program{path: "/proc/self/exe"}

func openProgram(path string) (program, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return program{}, err
	}
	return program{fmt.Sprintf("/proc/self/fd/%d", f.Fd()), f}, nil
}

func (p program) close() {
	if p.file != nil {
		p.file.Close()
	}
}

// gateway is one gateway process and its connection.
type gateway struct {
	child    *host.Child
	link     *wire.Link
	began    time.Time
	ready    chan struct{} // closed when the gateway has reported that it serves
	notified bool          // the supervisor knows that it serves
	served   chan struct{} // closed when the connection has ended; bye and err are set then
	bye      bool
	err      error

	givenUp bool // owned by supervise; the gateway could not end, see checkDying
}

// Run runs until a gateway says bye, the first gateway fails to start, or ctx or a signal ends it. When it returns, every process of every
// session has ended. code is for os.Exit. Call it once per program.
func Run(ctx context.Context, c Config) (code int, err error) {
	counts := prometheus.NewRegistry()
	c.Host.Metrics = metrics.New(nil)
	counts.MustRegister(c.Host.Metrics.ZombiesReaped, c.Host.Metrics.OrphansKilled, c.Host.Metrics.KillFailed)
	k := &keeper{c: c, counts: counts, exe: ownProgram}
	w := c.Handover
	var pipe [2]int
	if w != nil {
		pipe, k.earlierNumbers, c.Host.RestoreFrom = w.Signals, w.Numbers, &w.Host
	} else if pipe, err = signalsPipe(); err != nil {
		return 1, err
	}
	if k.signals, err = listenSignals(pipe, w, c.Log); err != nil {
		return 1, err
	}
	defer k.signals.close()
	c.Host.Alone = true
	host, err := host.NewHost(c.Host)
	if err != nil {
		return 1, err
	}
	if c.Check != nil && w == nil {
		if err := c.Check(host.Tiers()); err != nil {
			return 1, errors.Join(err, host.Close())
		}
	}
	k.host = host
	k.filterSignals(w)
	collecting, collect := make(chan struct{}), host.CollectBetweenForks()
	go func() { defer close(collecting); collect() }() // ends with the host; Run waits for it below
	epoch := rand.Text()
	if w != nil {
		epoch = w.Epoch
	}
	k.server = newServer(host, epoch, c.Listeners, k.numbers, c.Log)
	if w != nil {
		err = k.restore(w)
	} else {
		err = k.start()
	}
	if err != nil {
		err = errors.Join(err, host.Close())
		<-collecting
		return 1, err
	}
	code, err = k.supervise(ctx)
	err = errors.Join(err, host.Close())
	<-collecting
	k.server.wait()
	return code, err
}

// filterSignals prevents sessions from ending or stopping us with a signal, if the machine offers a way and the kernel does not prevent it
// anyway.
func (k *keeper) filterSignals(w *Handover) {
	if k.c.Host.SessionUser != nil { // the kernel refuses signals from another user
		return
	}
	err := confine.InstallSignalFilter(w != nil && w.SignalsFiltered)
	k.signalsFiltered = err == nil
	k.signals.open.Store(err != nil && len(k.c.Host.WritableDirs) == 0)
	if err != nil && w == nil && os.Getpid() != 1 && len(k.c.Host.WritableDirs) == 0 {
		k.c.Log.Warn().Err(err).Msg("a session's kill -9 $PPID can end every session; `trl doctor` says how to prevent it")
	}
}

func (k *keeper) numbers() wire.Numbers {
	n := k.earlierNumbers
	n.GatewayCrashes += k.crashes.Load()
	n.SignalsIgnored += k.signals.ignored.Load()
	families, _ := k.counts.Gather() // cannot fail: the registry has only our three counters
	for _, f := range families {
		value := uint64(f.GetMetric()[0].GetCounter().GetValue())
		switch f.GetName() {
		case "trl_zombies_reaped_total":
			n.ZombiesReaped += value
		case "trl_orphans_killed_total":
			n.OrphansKilled += value
		case "trl_kill_failed_total":
			n.KillFailed += value
		}
	}
	return n
}

// upgrade starts a gateway of the program that now has our name. The old gateway goes on until the new one says hello in our version of the
// protocol. Then the old one exits, and the new one has everything.
func (k *keeper) upgrade(stopping bool) error {
	if k.c.Program == "" || stopping || k.gateway == nil {
		return errors.New("no upgrade now")
	}
	exe, err := openProgram(k.c.Program)
	if err != nil {
		return err
	}
	k.nextExe = exe
	if k.next, err = k.launch(exe, nil); err != nil {
		k.revert()
		return err
	}
	k.notify("RELOADING=1")
	k.c.Log.Info().Int("gateway", k.next.child.Pid()).Msg("upgrade: new gateway starts")
	return nil
}

// revert abandons an upgrade.
func (k *keeper) revert() {
	k.nextExe.close()
	k.nextExe = program{}
	k.server.reserveFDs()
}

// upgraded reports the outcome of an upgrade.
func (k *keeper) upgraded(err error) {
	if err != nil {
		k.c.Log.Error().Err(err).Msg("upgrade refused; the old program continues")
	} else {
		k.c.Log.Info().Msg("upgraded")
	}
	k.notify("READY=1")
	if k.c.Upgraded != nil {
		k.c.Upgraded(err)
	}
}

func (k *keeper) notify(state string) {
	if k.c.Notify != nil {
		k.c.Notify(state)
	}
}

// discardGateway cleans up after a new gateway that exited before it served.
func (k *keeper) discardGateway(g *gateway, code int) error {
	g.link.Close()
	<-g.served
	g.child.Close()
	if v := (*wire.VersionError)(nil); errors.As(g.err, &v) {
		return fmt.Errorf("new gateway: %w", v)
	}
	return fmt.Errorf("new gateway ended with status %d before it served", code)
}

func (g *gateway) serving() bool {
	select {
	case <-g.ready:
		return true
	default:
		return false
	}
}

// crashed counts a crash and returns the pause before the next start.
func (k *keeper) crashed() (pause time.Duration) {
	k.crashes.Add(1)
	if k.crashesInARow > 0 {
		pause = min(firstRestartPause<<min(k.crashesInARow-1, 10), maxRestartPause)
	}
	k.crashesInARow++
	return pause
}

// start starts a gateway and serves it.
func (k *keeper) start() error {
	g, err := k.launch(k.exe, k.server.rememberedEnv())
	if err != nil {
		return err
	}
	k.gateway = g
	k.signals.gateway.Store(int64(g.child.Pid()))
	return nil
}

// restore continues what another keeper left in this process before the exec.
func (k *keeper) restore(w *Handover) error {
	l, err := wire.NewLink(os.NewFile(uintptr(w.Gateway.Link), "keeper"))
	if err != nil {
		return err
	}
	k.server.restore(w, l)
	g := &gateway{child: k.host.RestoredChild(w.Gateway.Pid), link: l, began: w.Gateway.Began, ready: make(chan struct{}), served: make(chan struct{}), notified: true}
	close(g.ready) // otherwise there would have been no upgrade
	k.gateway = g
	k.signals.gateway.Store(int64(w.Gateway.Pid))
	go func() { // the same as in launch
		defer close(g.served)
		defer l.Close()
		g.bye, g.err = k.server.readRequests(l, func() {})
	}()
	k.upgraded(nil)
	return nil
}

// launch starts a gateway. recalled are additional environment variables.
func (k *keeper) launch(exe program, recalled []string) (*gateway, error) {
	k.server.freeReservedFDs()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "gateway")
	defer theirs.Close()
	l, err := wire.NewLink(os.NewFile(uintptr(pair[0]), "keeper"))
	if err != nil {
		return nil, err
	}
	child, err := startGateway(k.host, exe.path, k.c, recalled, theirs)
	if err != nil {
		l.Close()
		return nil, err
	}
	g := &gateway{child: child, link: l, began: time.Now(), ready: make(chan struct{}), served: make(chan struct{})}
	go func() { // ends with the gateway's end of the socket; closeGateway waits for it
		defer close(g.served)
		g.bye, g.err = k.server.serve(l, child.Exited(), func() {
			if !g.serving() {
				close(g.ready)
			}
		})
	}()
	return g, nil
}

// closeGateway cleans up after a gateway that has exited.
func (k *keeper) closeGateway() *gateway {
	g := k.gateway
	select {
	case <-g.served: // all its requests are done
	case <-time.After(connectionEndTimeout): // another process has the gateway's end of the socket
		g.link.Close()
		<-g.served
	}
	k.signals.gateway.Store(0)
	g.child.Close()
	k.gateway = nil
	return g
}

func (k *keeper) signal(s syscall.Signal) {
	if err := k.gateway.child.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		k.c.Log.Error().Err(err).Msg("signal to the gateway")
	}
}

// startGateway starts a gateway with its socket at descriptor 3 and its environment at 4. Every session of the same user could read an
// environment that is passed at exec in /proc, until the new program hides it.
func startGateway(host *host.Host, program string, c Config, recalled []string, socket *os.File) (*host.Child, error) {
	fd, err := wire.SealedMemfd([]byte(strings.Join(slices.Concat(c.Env, recalled), "\x00")))
	if err != nil {
		return nil, fmt.Errorf("environment of the gateway: %w", err)
	}
	environ := os.NewFile(uintptr(fd), "environ")
	defer environ.Close()
	child, err := host.Spawn(own.Spec{
		Path: program, Argv: c.Args, Env: []string{wire.FDVar + "=3"},
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, socket, environ},
	}, c.Host.GatewayUser)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return child, nil
}
