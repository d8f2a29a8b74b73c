// Package spec has what a session is created with.
package spec

import (
	"cmp"
	"maps"
	"time"

	"trl/pool/entry"
	"trl/pool/recording"
	"trl/pool/settings"
	"trl/pool/shells"
	"trl/pool/timeouts"
	"trl/protocol"
	"trl/runtime/shell"
)

// Spec is what a session was created with. It never changes.
type Spec struct {
	Shell, Dir   string
	Env          protocol.Env
	Restore      bool // on_shell_exit
	EndsWithConn bool // on_disconnect: destroy
	Limits       protocol.Limits
	Record       recording.Set     // what its creator asked for; the server's policy may demand more
	Where        map[string]string // labels that its node must have
	Settings     Settings          // at first
}

// Settings is what session.update changes. It is never changed, only replaced as a whole.
type Settings struct {
	Labels  map[string]string
	Timeout time.Duration // of commands without a timeout; 0: none
	Idle    time.Duration // after which an idle session ends; 0: never
}

// New checks a request of who's against the operator's settings, and fills in the defaults. unenforceable says which limits cannot be enforced here.
func New(who string, q *protocol.SessionCreate, r *settings.Effective, unenforceable map[string]string) (Spec, error) {
	t := Spec{
		Dir: q.WorkingDir, Env: maps.Clone(q.Env),
		Settings: Settings{maps.Clone(q.Labels), timeouts.Command(timeouts.Or(q.Timeout, r.DefaultTimeout), r.MaxTimeout), timeouts.Idle(timeouts.Or(q.IdleTimeout, r.IdleTimeout), r.MaxIdle)},
		Restore:  q.OnShellExit != "terminate", EndsWithConn: q.OnDisconnect == "destroy", Record: recording.ParseSet(q.Record),
		Where: maps.Clone(q.Where),
	}
	var err error
	if t.Limits, err = shells.Limits(q.Limits, r.Limits, unenforceable); err != nil {
		return t, err
	}
	if t.Shell, err = r.Allowed.Resolve(who, q.Shell); err != nil {
		return t, err
	}
	t.Dir = cmp.Or(t.Dir, r.DefaultDir)
	return t, shells.CheckDir(who, t.Dir)
}

// Logged returns what a session was created with, as its session log says.
func Logged(q *entry.Session) Spec {
	return Spec{
		Shell: q.Shell, Dir: q.Dir, Env: q.Env, Restore: q.Restore, EndsWithConn: q.EndsWithConn, Limits: q.Limits, Record: recording.ParseSet(q.Record),
		Where:    q.Where,
		Settings: Settings{q.Labels, time.Duration(q.Timeout), time.Duration(q.Idle)},
	}
}

// Moved is Logged for a session of another node, within the settings of this one.
func Moved(q *entry.Session, r *settings.Effective, unenforceable map[string]string) (Spec, error) {
	t := Logged(q)
	var err error
	if t.Shell, err = r.Allowed.Resolve(q.Owner, q.Shell); err != nil {
		return t, err
	}
	if shells.CheckDir(q.Owner, t.Dir) != nil {
		t.Dir = r.DefaultDir
	}
	t.Limits, err = shells.Limits(&q.Limits, r.Limits, unenforceable)
	return t, err
}

// Put puts what a session was created with, and the settings that are in force, into its entry in the session log.
func (t *Spec) Put(q *entry.Session, now *Settings) {
	q.Shell, q.Dir, q.Env, q.Restore, q.EndsWithConn, q.Limits, q.Record = t.Shell, t.Dir, t.Env, t.Restore, t.EndsWithConn, t.Limits, t.Record.String()
	q.Where, q.Labels, q.Timeout, q.Idle = t.Where, now.Labels, entry.Duration(now.Timeout), entry.Duration(now.Idle)
}

// Updated returns the settings after a session.update, and the entry that says so.
func (s Settings) Updated(q *protocol.SessionUpdate, r *settings.Effective) (*Settings, entry.Entry) {
	if q.Labels != nil {
		s.Labels = nil
		if len(*q.Labels) > 0 {
			s.Labels = maps.Clone(*q.Labels)
		}
	}
	if q.Timeout != nil {
		s.Timeout = timeouts.Command(q.Timeout.Duration(), r.MaxTimeout)
	}
	if q.IdleTimeout != nil {
		s.Idle = timeouts.Idle(q.IdleTimeout.Duration(), r.MaxIdle)
	}
	return &s, entry.Entry{Settings: &entry.Settings{Labels: s.Labels, Timeout: entry.Duration(s.Timeout), Idle: entry.Duration(s.Idle)}}
}

// Environ returns the environment of the shell of the session with this id.
func (t *Spec) Environ(base []string, id string) []string {
	return shells.Environ(base, id, t.Shell, t.Env)
}

// ShellConfig returns how that shell is started.
func (t *Spec) ShellConfig(base []string, id string) shell.ShellConfig {
	return shell.ShellConfig{ID: id, Path: t.Shell, Dir: t.Dir, Env: t.Environ(base, id), Restore: t.Restore, Limits: t.Limits}
}
