package own

// StartInSteps is StartInNewScope for a group that has no request for all of it.
func StartInSteps(g KeptGroup, spec Spec, hold ...int) (d Started, err error) {
	err = Concurrently(
		func() (err error) {
			d.Scope, err = g.NewScope()
			return err
		},
		func() (err error) {
			d.Held, err = g.Hold(hold...)
			return err
		})
	if err == nil {
		d.Child, err = d.Scope.Spawn(spec)
	}
	if err == nil {
		return d, nil
	}
	if d.Held != nil {
		g.Drop(d.Held...)
	}
	if d.Scope != nil && !d.Scope.Remove() {
		_ = d.Scope.Kill(0)
		d.Scope.Remove()
	}
	return Started{}, err
}
