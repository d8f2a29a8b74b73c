package own

import (
	"cmp"
	"sync"
)

// Concurrently runs all calls at the same time and returns the first error in the order of calls. Their requests to the keeper then
// take the time of one round trip.
func Concurrently(calls ...func() error) error {
	errs := make([]error, len(calls))
	var others sync.WaitGroup
	for i := 1; i < len(calls); i++ {
		others.Go(func() { errs[i] = calls[i]() })
	}
	errs[0] = calls[0]()
	others.Wait()
	return cmp.Or(errs...)
}
