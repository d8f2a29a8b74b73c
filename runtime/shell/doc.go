// Package runtime is everything that touches the operating system: processes
// and how they end, shells, commands, journals.
//
// Ownership, from the outside in. A Host owns every process below trl: it
// starts them (Spawn), reaps them (the child reaper) and is their subreaper, so that
// nothing a command starts can leave the family. A Group is one session's
// processes; its Close returns when none is left. A Scope is the part of a group
// that one command started, so that a command can be ended without its shell
// and without the jobs of earlier commands. A Child is one process that we
// started ourselves; its Status is recorded exactly once.
//
// No signal is ever sent to a bare process number: a process is first pinned by
// a pidfd, then looked at, then signalled. If the number was reused meanwhile,
// what is pinned is dead and the signal goes nowhere.
package shell
