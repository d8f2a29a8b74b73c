package cgroup

// RootState is a Root for the next keeper.
type RootState struct {
	Dir, Path string
	Lock      int
}

// HandoverState returns what the next keeper needs to continue with r.
func (r *Root) HandoverState() *RootState {
	if r == nil {
		return nil
	}
	return &RootState{r.Dir, r.Path, r.lock}
}

// Restore returns the Root of the last keeper.
func (b *RootState) Restore() *Root {
	if b == nil {
		return nil
	}
	return &Root{Dir: b.Dir, Path: b.Path, lock: b.Lock}
}

// HierarchyState is a Hierarchy for the next keeper.
type HierarchyState struct {
	Dir, Path, Why string
	Root           *RootState
}

// HandoverState returns what the next keeper needs to continue with y.
func (y *Hierarchy) HandoverState() HierarchyState {
	return HierarchyState{y.Dir, y.Path, y.Why, y.Root.HandoverState()}
}

// Restore returns a Hierarchy of the last keeper.
func (s HierarchyState) Restore(controller string) *Hierarchy {
	return &Hierarchy{Controller: controller, Dir: s.Dir, Path: s.Path, Why: s.Why, Root: s.Root.Restore()}
}
