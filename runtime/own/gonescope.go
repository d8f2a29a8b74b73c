package own

import (
	"os"
	"syscall"
)

// GoneScope stands for a scope that was removed. It has no members.
type GoneScope int

func (c GoneScope) Number() int                     { return int(c) }
func (GoneScope) Spawn(Spec) (KeptChild, error)     { return nil, os.ErrNotExist }
func (GoneScope) AddChild(int) error                { return os.ErrNotExist }
func (GoneScope) AddForkedCopy(int) error           { return os.ErrNotExist }
func (GoneScope) MembersExcept(int) []int           { return nil }
func (GoneScope) Signal(syscall.Signal, int)        {}
func (GoneScope) SignalSome(syscall.Signal, ...int) {}
func (GoneScope) Kill(int) error                    { return nil }
func (GoneScope) Remove() bool                      { return true }
func (GoneScope) Rest()                             {}
