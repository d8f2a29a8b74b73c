package web

import (
	"crypto/rand"
	"net/http"

	"trl/web/auth"
	"trl/web/ui"
)

// serveSharePage serves the web terminal for guests. Its script takes the token out of the URL's fragment, so the page itself is no secret.
func (s *Server) serveSharePage(w http.ResponseWriter, r *http.Request) { ui.ServePage(w, rand.Text()) }

// serveShareState tells a page that could not connect whether its link is still valid. A browser does not tell a page why an upgrade was refused.
func (s *Server) serveShareState(w http.ResponseWriter, r *http.Request) {
	if g, no := s.auth.Authorize(r); no != nil {
		auth.Deny(w, no)
		return
	} else if g.GuestID() == "" {
		auth.Refuse(w, http.StatusUnauthorized, "this link opens nothing")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
