//go:build !otel

package serve

import (
	"github.com/rs/zerolog"

	"trl/web"
)

// openTraces is that of a build without tracing: there is nothing to tell, and nothing that tells is linked.
func openTraces(zerolog.Logger) (tell func(web.Trace), end func(), err error) {
	return nil, func() {}, nil
}
