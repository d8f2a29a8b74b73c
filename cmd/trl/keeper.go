package main

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

	"trl/metrics"
	"trl/runtime"
	"trl/runtime/keeper"
	"trl/web/listen"
)

// runKeeper is the half of `trl serve` that stays: it owns the state directory's lock, the sockets and every process, and starts
// this same program again as the gateway, as often as that dies. It ends when the gateway has said goodbye. After an upgrade
// it is a new program in the same process, and goes on with what will says it has; nil: it is the first. outsidePID is the process that
// stands for this one outside of the sandbox; 0: there is no sandbox.
func runKeeper(s *settings, will *keeper.Handover, outsidePID int, log zerolog.Logger) (err error) {
	k := keeperSetup{handover: will, outsidePID: outsidePID}
	if s.configError != nil {
		log.Error().Err(s.configError).Msg("settings of before the upgrade are not taken any more")
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
	defer os.Remove(state.file(keeperFile))
	defer k.endOrphanKiller()
	held := []int{state.lockFD()}
	if k.orphanKiller != nil {
		held = append(held, int(k.orphanKiller.Fd()))
	}
	code, err := keeper.Run(context.Background(), keeper.Config{
		Host:      runtime.Config{Isolation: s.isolation, Instance: k.instance, SessionUser: s.sessionUser, WritableDirs: s.landlockDirs(), GatewayUser: s.gatewayUser, Log: log},
		Listeners: k.files, Args: os.Args, Env: k.env, Log: log,
		Program: k.program, Upgraded: func(err error) { state.saveUpgradeOutcome(err, log) }, Held: held, Handover: will,
		Drain: s.drainTime(), Notify: notify, Watchdog: watchdogInterval(),
		Check: func(tiers []runtime.TierReport) error { return requireTier(tiers, s.requiredTier) },
	})
	_ = os.Remove(state.file(instanceFile)) // Run has ended all that bore it
	if r := (*hintedError)(nil); code == 0 || errors.As(err, &r) {
		return err
	}
	if err != nil {
		log.Error().Err(err).Msg("keeper ends")
	}
	return exitCode(code) // whoever failed has said why
}

// A keeperSetup is what a keeper has before it keeps.
type keeperSetup struct {
	handover   *keeper.Handover
	outsidePID int
	state      *stateDir
	sockets    *listen.Sockets
	files      []*os.File // of the sockets, for gateways
	program    string     // as it is called now: /proc/self/exe follows the file, and an upgrade is another file
	instance   runtime.Instance
	env        []string // of gateways

	orphanKiller    *os.File // what the orphan killer waits for the end of; nil: there is none
	endOrphanKiller func()   // of the orphan killer
}

func (k *keeperSetup) begin(s *settings, log zerolog.Logger) (err error) {
	if k.state, err = openStateDir(s.stateDir); err != nil {
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
	if k.sockets, err = listen.Bind(s.web.Config); err != nil {
		return hintListen(err, s)
	}
	if k.files, err = k.sockets.Files(); err != nil {
		return err
	}
	pid := os.Getpid()
	if k.outsidePID != 0 { // our own is 1, and the other passes on what it is told
		pid = k.outsidePID
	}
	if err := os.WriteFile(k.state.file(keeperFile), fmt.Appendln(nil, pid), 0o600); err != nil {
		log.Warn().Err(err).Msg("trl upgrade will not find this keeper")
	}
	killLeftovers(k.state, log)
	k.instance = runtime.NewInstance()
	if err := os.WriteFile(k.state.file(instanceFile), fmt.Appendln(nil, bootID(), k.instance), 0o600); err != nil {
		return fmt.Errorf("state directory: %w", err) // what a kill -9 of us leaves could not be found
	}
	if k.program, err = os.Executable(); err != nil {
		log.Warn().Err(err).Msg("no upgrade without a restart")
	}
	k.env, k.endOrphanKiller = s.passConfig(os.Environ()), func() {}
	if s.gatewayUser == nil {
		return nil
	}
	if k.env, err = grantGateway(s, k.state, k.sockets, k.env); err != nil {
		return err
	}
	k.orphanKiller, k.endOrphanKiller, err = startOrphanKiller(k.instance)
	return err
}

func (k *keeperSetup) resume(s *settings) (err error) {
	k.files, k.program, k.env, k.endOrphanKiller = k.handover.Files(), k.handover.Program, k.handover.Env, func() {}
	if len(k.handover.Held) > 1 {
		k.orphanKiller = os.NewFile(uintptr(k.handover.Held[1]), "orphan killer")
		k.endOrphanKiller = func() { k.orphanKiller.Close() } // it is the child reaper's now
	}
	if k.state, err = inheritStateDir(s.stateDir, k.handover.Held[0]); err != nil {
		return err
	}
	k.sockets, err = listen.Reuse(k.files, s.web.Config)
	return err
}

// killLeftovers ends what a keeper that was killed left, its gateway included. We have its lock, so it is dead.
func killLeftovers(state *stateDir, log zerolog.Logger) {
	text, err := os.ReadFile(state.file(instanceFile))
	if err != nil {
		return
	}
	var boot string
	var instance runtime.Instance
	if _, err := fmt.Sscan(string(text), &boot, &instance); err != nil || boot != bootID() {
		return // before the last boot: nothing is left
	}
	if ended := instance.KillLeftovers(stopTimeout); len(ended) > 0 {
		log.Warn().Ints("pids", ended).Msg("ended what a keeper that was killed left behind")
	}
}

func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// countKeeper adds what the keeper counts, which it has done since before this gateway, to what is scraped; and the signals
// that this gateway ignored.
func countKeeper(all prometheus.Gatherer, counts *metrics.Metrics, kept *keeper.Client, ignored func() uint64) prometheus.Gatherer {
	var mu sync.Mutex
	var told keeper.Numbers // guarded by mu; what counts has of it
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
