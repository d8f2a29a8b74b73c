package web

import (
	"net/http"
	"net/http/pprof"
	"time"
	"trl/web/listen"
)

// profiles returns the handler of AdminListen. Nothing else serves profiles, because they tell about every session and take processor time.
func profiles(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // also heap, goroutine and the others, by name
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /metrics", metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		listen.MarkAuthenticated(r)                                // every client here is allowed: the address keeps strangers out
		http.NewResponseController(w).SetReadDeadline(time.Time{}) // an expired deadline would end the request's context and the profile
		mux.ServeHTTP(w, r)
	})
}
