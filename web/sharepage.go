package web

import (
	"crypto/rand"
	"net/http"

	"trl/web/auth"
	"trl/web/ui"
)

// serveSharePage is the web terminal for guests. Its script has the token, out of the fragment: the page itself is no secret.
func (s *Server) serveSharePage(w http.ResponseWriter, r *http.Request) { ui.ServePage(w, rand.Text()) }

// serveShareState tells a page that could not connect whether its link still opens something: a browser does not tell why an upgrade was refused.
func (s *Server) serveShareState(w http.ResponseWriter, r *http.Request) {
	if g, no := s.auth.Authorize(r); no != nil {
		auth.Deny(w, no)
		return
	} else if g.Share == nil {
		auth.Refuse(w, http.StatusUnauthorized, "this link opens nothing")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
