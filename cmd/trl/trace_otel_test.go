//go:build otel

package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"trl/client"
)

// TestTraces: a collector gets the spans of a command, and nothing of the command's text.
func TestTraces(t *testing.T) {
	var mu sync.Mutex
	got := map[string]map[string]bool{} // parent's name → names of its children
	var all []byte
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var q collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &q); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, body...)
		for _, rs := range q.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				names := map[string]string{"": ""}
				for _, s := range ss.Spans {
					names[string(s.SpanId)] = s.Name
				}
				for _, s := range ss.Spans {
					parent := names[string(s.ParentSpanId)]
					if got[parent] == nil {
						got[parent] = map[string]bool{}
					}
					got[parent][s.Name] = true
					if s.EndTimeUnixNano < s.StartTimeUnixNano {
						t.Errorf("%s ends before it begins", s.Name)
					}
				}
			}
		}
	}))
	defer sink.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
	g := startGateway(t)
	c, err := client.Connect(t.Context(), client.Options{URL: "http://" + g.addr})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "echo hunter2hunter2", nil); err != nil {
		t.Fatal(err)
	}
	_ = c.Call(t.Context(), "hunter2hunter2", nil, nil)
	c.Close()
	g.stop(t) // sends the remaining spans
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		run := got["exec.run"]
		whole := got[""]["exec.run"] && got[""]["unknown"] && run["queue"] && run["run"] && run["answer"]
		mu.Unlock()
		if whole {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%v", got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if bytes.Contains(all, []byte("hunter2")) {
		t.Error("a client's text is in a trace")
	}
}
