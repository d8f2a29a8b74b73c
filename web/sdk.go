package web

import (
	"net/http"

	"trl/client/typescript"
)

// serveSDK serves the TypeScript client as one script. It is not secret, and the pages that may connect (guard has looked at their origin) may import it.
func serveSDK(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if origin := r.Header.Get("Origin"); origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	}
	h.Set("Content-Type", "text/javascript; charset=utf-8")
	text, err := typescript.Files.ReadFile(typescript.Script)
	if err != nil {
		panic(err) // it is embedded
	}
	w.Write(text)
}
