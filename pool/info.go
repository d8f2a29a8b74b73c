package pool

import (
	"slices"
	"time"

	"trl/metrics"
	"trl/pool/background"
	"trl/pool/events"
	"trl/protocol"
	"trl/runtime/procfs"
)

// facts are what only the operating system knows. Code asks for them without a lock.
type facts struct {
	dir        string
	pid, envs  int
	background []int
}

func (s *Session) facts() facts {
	s.mu.Lock()
	shell := s.shell
	if s.closed {
		defer s.mu.Unlock()
		return s.final.facts
	}
	f := facts{dir: s.dir}
	s.mu.Unlock()
	if shell == nil {
		return f
	}
	f.pid, f.envs, f.background = shell.Pid(), shell.EnvCount(), shell.Background()
	if dir := shell.Dir(); dir != "" {
		f.dir = dir
	}
	return f
}

// Watch subscribes to the session's events. The caller closes the watcher.
func (s *Session) Watch() *events.Watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watchers.Subscribe()
}

// Summary is what session.create answers.
func (s *Session) Summary() protocol.Session {
	f := s.facts()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.summaryLocked(f)
}

func (s *Session) summaryLocked(f facts) protocol.Session {
	return protocol.Session{
		SessionID: s.id, Epoch: s.pool.epoch, Name: s.name, Shell: s.spec.Shell, WorkingDir: f.dir,
		State: string(s.state.State()), CreatedAt: s.created, Pid: f.pid, Limits: s.spec.Limits, Labels: s.settings.Load().Labels,
		Record: s.recordSet().String(), Where: s.spec.Where,
	}
}

// Info is what session.info answers.
func (s *Session) Info() protocol.SessionInfo {
	f := s.facts()
	s.mu.Lock()
	defer s.mu.Unlock()
	info := protocol.SessionInfo{
		Session: s.summaryLocked(f), LastActiveAt: idleBase.Add(time.Duration(s.lastActive.Load())), EnvCount: f.envs, CommandsRun: s.commands,
		QueueLength: s.waiting.Len(), Processes: s.liveProcesses, Terminals: s.openTerminals, Unmanaged: f.background,
		Owner: s.owner, MemoryBytes: s.memoryLocked(), LastExec: s.last,
	}
	settings := s.settings.Load()
	info.Timeout, info.IdleTimeout = protocol.Seconds(settings.Timeout.Seconds()), protocol.Seconds(settings.Idle.Seconds())
	info.Recording = s.openRecordingsLocked()
	info.InTerminals = s.inTerminalsLocked()
	if e := s.running; e != nil {
		info.CurrentExec = &protocol.CurrentExec{ID: e.ID(), Command: protocol.TruncateText(e.text), StartedAt: e.startedAt}
	}
	if s.closed {
		info.TerminatedAt, info.Reason, info.Pid, info.MemoryBytes = &s.final.at, s.ending.reason, 0, 0
	}
	return info
}

// memoryLocked returns the last measurement, and starts another one if that is old. A measurement asks the keeper and reads a file for each process,
// and no answer shall wait for it. s.mu is held.
func (s *Session) memoryLocked() int64 {
	if s.shell != nil && s.ending == nil && s.memory.IsDue() {
		s.processTasks.Add(1)
		go func() { // ends with the keeper's answer; finish waits for it
			defer s.processTasks.Done()
			used := s.shell.Memory()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.memory.Set(used)
		}()
	}
	return s.memory.Bytes()
}

// Background returns the pids of processes that earlier commands left running.
func (s *Session) Background() []int { return s.facts().background }

// BackgroundCommands returns the command lines of such processes.
func (s *Session) BackgroundCommands(pids []int) []protocol.BackgroundEntry {
	return background.Commands(s.id, pids, s.Background)
}

// maxListedExecs is how many commands Execs lists at most.
const maxListedExecs = 200

// Execs is what exec.list answers: the waiting commands, the running one, and the latest that ended, oldest first.
func (s *Session) Execs() []protocol.ExecEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Exec, 0, maxListedExecs+len(s.execs))
	for i := s.retained.Len() - 1; i >= 0 && len(all) < maxListedExecs; i-- { // in the order of their ends, which is that of their begins
		if x, ok := s.retained.At(i).(*endedExec); ok {
			all = append(all, x.toExec())
		}
	}
	for _, e := range s.execs {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *Exec) int { return a.queuedAt.Compare(b.queuedAt) })
	entries := []protocol.ExecEntry{}
	for _, e := range all[max(0, len(all)-maxListedExecs):] {
		x := protocol.ExecEntry{ExecID: e.ID(), StreamID: e.StreamID(), Command: protocol.TruncateText(e.text), State: "queued", QueuedAt: e.queuedAt, RecordingID: e.recording}
		if !e.startedAt.IsZero() {
			started := e.startedAt
			x.State, x.StartedAt = "running", &started
		}
		if e.hasEnded() {
			exit := e.exit
			x.State, x.Exit = "ended", &exit
		}
		entries = append(entries, x)
	}
	return entries
}

// metricsSnapshot returns the values of the gauges.
func (p *Pool) metricsSnapshot() metrics.PoolNumbers {
	n := metrics.PoolNumbers{ByState: map[string]int{}, MaxSessions: max(0, p.config.Load().MaxSessions), Warm: len(p.warm.Ready()), Recordings: p.recordings.OpenCount()}
	for _, s := range p.all() {
		s.mu.Lock()
		n.ByState[string(s.state.State())]++
		n.Queued += s.waiting.Len()
		if s.running != nil {
			n.RunningExecs++
		}
		n.Processes += s.liveProcesses
		n.Terminals += s.openTerminals
		s.mu.Unlock()
	}
	return n
}

// Stats is what system.stats answers.
func (p *Pool) Stats() protocol.Stats {
	n := p.metricsSnapshot()
	return protocol.Stats{
		ByState: n.ByState, ActiveSessions: p.LiveCount(), MaxSessions: n.MaxSessions, TotalCommandsRun: p.commands.Load(),
		Running: n.RunningExecs, Queued: n.Queued, Processes: n.Processes, Terminals: n.Terminals,
		WarmShells: n.Warm, UptimeS: int64(time.Since(p.started).Seconds()), MemoryRSSBytes: procfs.ResidentMemory(),
	}
}
