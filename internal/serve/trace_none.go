//go:build !otel

package serve

import (
	"github.com/rs/zerolog"

	"trl/web/rpc"
)

// openTraces does nothing in a build without tracing, which does not link OpenTelemetry.
func openTraces(zerolog.Logger) (tell func(rpc.Trace), end func(), err error) {
	return nil, func() {}, nil
}
