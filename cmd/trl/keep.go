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
	"trl/web"
)

// keep is the half of `trl serve` that stays: it owns the state directory's lock, the sockets and every process, and starts
// this same program again as the gateway, as often as that dies. It ends when the gateway has said goodbye.
func keep(s *settings, log zerolog.Logger) (err error) {
	state, err := openStateDir(s.stateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	sockets, err := web.Bind(s.web)
	if err != nil {
		return hintListen(err, s)
	}
	defer sockets.Close()
	files, err := sockets.Files()
	if err != nil {
		return err
	}
	if err := os.WriteFile(state.file(keeperFile), fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		log.Warn().Err(err).Msg("trl upgrade will not find this keeper")
	}
	defer os.Remove(state.file(keeperFile))
	endPredecessor(state, log)
	instance := runtime.NewInstance()
	if err := os.WriteFile(state.file(instanceFile), fmt.Appendln(nil, bootID(), instance), 0o600); err != nil {
		return fmt.Errorf("state directory: %w", err) // what a kill -9 of us leaves could not be found
	}
	env := os.Environ()
	if s.gateway != nil {
		if env, err = s.giveGateway(state, sockets, env); err != nil {
			return err
		}
		end, err := startUndertaker(instance)
		if err != nil {
			return err
		}
		defer end()
	}
	program, err := os.Executable() // as it is called now: /proc/self/exe follows the file, and an upgrade is another file
	if err != nil {
		log.Warn().Err(err).Msg("no upgrade without a restart")
	}
	code, err := keeper.Run(context.Background(), keeper.Config{
		Host:      runtime.Config{Isolation: s.isolation, Instance: instance, As: s.as, Write: s.write, Gateway: s.gateway, Log: log},
		Listeners: files, Args: os.Args, Env: env, Log: log,
		Program: program, Upgraded: func(err error) { state.upgraded(err, log) },
		Check: func(tiers []runtime.TierReport) error { return requireTier(tiers, s.require) },
	})
	_ = os.Remove(state.file(instanceFile)) // Run has ended all that bore it
	if r := (*refusal)(nil); code == 0 || errors.As(err, &r) {
		return err
	}
	if err != nil {
		log.Error().Err(err).Msg("keeper ends")
	}
	return exitCode(code) // whoever failed has said why
}

// instanceFile says how to know what the keeper of a state dir leaves when it is killed: "BOOT-ID INSTANCE".
const instanceFile = "instance"

// endPredecessor ends what a keeper that was killed left, its gateway included. We have its lock, so it is dead.
func endPredecessor(state *stateDir, log zerolog.Logger) {
	text, err := os.ReadFile(state.file(instanceFile))
	if err != nil {
		return
	}
	var boot string
	var instance runtime.Instance
	if _, err := fmt.Sscan(string(text), &boot, &instance); err != nil || boot != bootID() {
		return // before the last boot: nothing is left
	}
	if ended := instance.End(endWithin); len(ended) > 0 {
		log.Warn().Ints("pids", ended).Msg("ended what a keeper that was killed left behind")
	}
}

func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// countKeeper adds what the keeper counts, which it has done since before this gateway, to what is scraped.
func countKeeper(all prometheus.Gatherer, counts *metrics.Metrics, kept *keeper.Client) prometheus.Gatherer {
	var mu sync.Mutex
	var told keeper.Numbers // guarded by mu; what counts has of it
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		mu.Lock()
		defer mu.Unlock()
		if now, err := kept.Numbers(); err == nil {
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
