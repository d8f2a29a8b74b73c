package web

import (
	"net/http"
	"net/http/pprof"
	"time"
	"trl/web/listen"
)

// profiles is what AdminListen serves and nothing else does: they tell about every session at once, and take processor time.
func profiles(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // heap, goroutine and the others by name, too
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /metrics", metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		listen.MarkAuthenticated(r)                                // whoever gets here may: strangers are shut out by the address
		http.NewResponseController(w).SetReadDeadline(time.Time{}) // its expiry would end the request's context, and with that a profile
		mux.ServeHTTP(w, r)
	})
}
