package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/statedir"
	"trl/metrics"
	"trl/runtime/host"
	"trl/runtime/keeper"
	"trl/runtime/keeper/client"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
	"trl/web/listen"
)

// runKeeper is the half of `trl serve` that stays. It owns the lock of the state directory, the sockets and every process. It starts the
// same program as the gateway, again whenever the gateway dies, and it ends after the gateway has said goodbye. After an upgrade it is a
// new program in the same process, and will has the state of the old one; nil: there was none. outsidePID is the process that represents
// this one outside of the sandbox; 0: there is no sandbox.
func runKeeper(s *config.Settings, will *keeper.Handover, outsidePID int, log zerolog.Logger) (err error) {
	k := keeperSetup{handover: will, outsidePID: outsidePID}
	if s.FileError != nil {
		log.Error().Err(s.FileError).Msg("this program refuses the settings from before the upgrade")
	}
	if will == nil {
		err = k.begin(s, log)
	} else {
		err = k.resume(s)
	}
	if err != nil {
		return err
	}
	state := k.state
	defer func() { err = errors.Join(err, state.Close()) }()
	defer k.sockets.Close()
	defer os.Remove(state.File(statedir.KeeperFile))
	defer k.endOrphanKiller()
	held := []int{state.LockFD()}
	if k.orphanKiller != nil {
		held = append(held, int(k.orphanKiller.Fd()))
	}
	code, err := keeper.Run(context.Background(), keeper.Config{
		Host:      host.Config{Isolation: s.Isolation, Instance: k.instance, SessionUser: s.SessionUser, WritableDirs: s.LandlockDirs(), GatewayUser: s.GatewayUser, Log: log},
		Listeners: k.files, Args: os.Args, Env: k.env, Log: log,
		Program: k.program, Upgraded: func(err error) { state.SaveUpgradeOutcome(err, log) }, Held: held, Handover: will,
		Drain: s.DrainTime(), Notify: notify, Watchdog: watchdogInterval(),
		Check: func(tiers []own.TierReport) error { return requireTier(tiers, s.RequiredTier) },
	})
	_ = os.Remove(state.File(statedir.InstanceFile)) // Run has ended every process of this instance
	if r := (*cmdline.HintedError)(nil); code == 0 || errors.As(err, &r) {
		return err
	}
	if err != nil {
		log.Error().Err(err).Msg("keeper ends")
	}
	return cmdline.ExitCode(code) // the failure is already in the log
}

// keeperSetup has what a keeper needs before it runs.
type keeperSetup struct {
	handover   *keeper.Handover
	outsidePID int
	state      *statedir.Dir
	sockets    *listen.Sockets
	files      []*os.File // of the sockets, for gateways
	program    string     // the path of our program; /proc/self/exe would follow a renamed file, and an upgrade is another file at this path
	instance   host.Instance
	env        []string // of gateways

	orphanKiller    *os.File // the pipe that the orphan killer watches; nil: there is no orphan killer
	endOrphanKiller func()   // ends the orphan killer
}

func (k *keeperSetup) begin(s *config.Settings, log zerolog.Logger) (err error) {
	if k.state, err = statedir.Open(s.StateDir); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		if k.sockets != nil {
			k.sockets.Close()
		}
		err = errors.Join(err, k.state.Close())
	}()
	if k.sockets, err = listen.Bind(s.Web.Config); err != nil {
		return hintListen(err, s)
	}
	if k.files, err = k.sockets.Files(); err != nil {
		return err
	}
	pid := os.Getpid()
	if k.outsidePID != 0 { // in the sandbox our pid is 1; the process outside passes signals on
		pid = k.outsidePID
	}
	if err := os.WriteFile(k.state.File(statedir.KeeperFile), fmt.Appendln(nil, pid), 0o600); err != nil {
		log.Warn().Err(err).Msg("trl upgrade will not find this keeper")
	}
	killLeftovers(k.state, log)
	k.instance = host.NewInstance()
	if err := os.WriteFile(k.state.File(statedir.InstanceFile), fmt.Appendln(nil, bootID(), k.instance), 0o600); err != nil {
		return fmt.Errorf("state directory: %w", err) // after a kill -9 of us the next start could not find our processes
	}
	if k.program, err = os.Executable(); err != nil {
		log.Warn().Err(err).Msg("no upgrade without a restart")
	}
	k.env, k.endOrphanKiller = s.PassFile(os.Environ()), func() {}
	if s.GatewayUser == nil {
		return nil
	}
	if k.env, err = grantGateway(s, k.state, k.sockets, k.env); err != nil {
		return err
	}
	k.orphanKiller, k.endOrphanKiller, err = startOrphanKiller(k.instance)
	return err
}

func (k *keeperSetup) resume(s *config.Settings) (err error) {
	k.files, k.program, k.env, k.endOrphanKiller = k.handover.Files(), k.handover.Program, k.handover.Env, func() {}
	if len(k.handover.Held) > 1 {
		k.orphanKiller = os.NewFile(uintptr(k.handover.Held[1]), "orphan killer")
		k.endOrphanKiller = func() { k.orphanKiller.Close() } // the child reaper waits for it now
	}
	if k.state, err = statedir.Inherit(s.StateDir, k.handover.Held[0]); err != nil {
		return err
	}
	k.sockets, err = listen.Reuse(k.files, s.Web.Config)
	return err
}

// killLeftovers kills what a dead keeper left, also its gateway. That keeper is dead, because we hold its lock.
func killLeftovers(state *statedir.Dir, log zerolog.Logger) {
	text, err := os.ReadFile(state.File(statedir.InstanceFile))
	if err != nil {
		return
	}
	var boot string
	var instance host.Instance
	if _, err := fmt.Sscan(string(text), &boot, &instance); err != nil || boot != bootID() {
		return // from before the last boot: nothing is left
	}
	if ended := instance.KillLeftovers(StopTimeout); len(ended) > 0 {
		log.Warn().Ints("pids", ended).Msg("killed the processes that a killed keeper left")
	}
}

func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// countKeeper adds the keeper's counters, which run since before this gateway, to the scraped metrics. It also adds the number of signals
// that this gateway ignored.
func countKeeper(all prometheus.Gatherer, counts *metrics.Metrics, kept *client.Client, ignored func() uint64) prometheus.Gatherer {
	var mu sync.Mutex
	var told wire.Numbers // guarded by mu; the numbers that counts already contains
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		mu.Lock()
		defer mu.Unlock()
		if now, err := kept.Numbers(); err == nil {
			now.SignalsIgnored += ignored()
			counts.ZombiesReaped.Add(float64(now.ZombiesReaped - told.ZombiesReaped))
			counts.OrphansKilled.Add(float64(now.OrphansKilled - told.OrphansKilled))
			counts.KillFailed.Add(float64(now.KillFailed - told.KillFailed))
			counts.GatewayCrashes.Add(float64(now.GatewayCrashes - told.GatewayCrashes))
			counts.SignalsIgnored.Add(float64(now.SignalsIgnored - told.SignalsIgnored))
			told = now
		}
		return all.Gather()
	})
}
