//go:build otel

package serve

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"trl/internal/buildinfo"
	"trl/web/rpc"
)

// traceEndTimeout bounds the sending of the last spans at our end.
const traceEndTimeout = 2 * time.Second

// openTraces sends traces of requests by OTLP over HTTP to the address in OpenTelemetry's own variables. Without these variables it sends
// nothing.
func openTraces(log zerolog.Logger) (tell func(rpc.Trace), end func(), err error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, func() {}, nil
	}
	exporter, err := otlptracehttp.New(context.Background())
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn().Err(err).Msg("traces") }))
	who, err := resource.New(context.Background(), resource.WithAttributes(
		attribute.String("service.name", "trl"), attribute.String("service.version", buildinfo.Version())), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(who)) // drops spans when its queue is full, so it never blocks
	tracer := provider.Tracer("trl")
	return func(t rpc.Trace) { spans(tracer, t) }, func() {
		ctx, cancel := context.WithTimeout(context.Background(), traceEndTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn().Err(err).Msg("traces")
		}
	}, nil
}

// spans makes the spans of one finished request: one for all of it, and below it one for each part.
func spans(tracer trace.Tracer, t rpc.Trace) {
	attributes := []attribute.KeyValue{attribute.String("trl.outcome", t.Outcome)}
	for key, id := range map[string]string{"trl.session": t.Session, "trl.exec": t.Exec} {
		if id != "" {
			attributes = append(attributes, attribute.String(key, id))
		}
	}
	ctx, whole := tracer.Start(context.Background(), t.Method,
		trace.WithTimestamp(t.ReceivedAt), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...))
	part := func(name string, from, to time.Time) {
		if !from.IsZero() && !to.IsZero() {
			_, span := tracer.Start(ctx, name, trace.WithTimestamp(from))
			span.End(trace.WithTimestamp(to))
		}
	}
	turn := t.StartedAt
	if turn.IsZero() {
		turn = t.EndedAt // the exec left the queue without a turn
	}
	part("queue", t.QueuedAt, turn)
	part("run", t.StartedAt, t.EndedAt)
	part("answer", t.AnswerReadyAt, t.AnsweredAt)
	if t.Outcome != "ok" {
		whole.SetStatus(codes.Error, t.Outcome)
	}
	whole.End(trace.WithTimestamp(t.AnsweredAt))
}
