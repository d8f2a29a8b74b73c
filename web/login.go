package web

import (
	"crypto/rand"
	"encoding/base64"
	"html/template"
	"net/http"
	"strings"
	"time"

	"trl/web/audit"
	"trl/web/ui"
)

// loginPage takes the token out of the fragment, which browsers send to nobody, and out of the address bar, and posts it.
var loginPage = template.Must(template.New("login").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>trl: log in</title>
<style nonce="{{.}}">body{font:16px system-ui;margin:4em auto;max-width:30em;padding:0 1em}input,button{font:inherit;padding:.4em}</style>
<h1>trl</h1>
<p id="say" role="status">Log in with the token that <code>trl serve</code> printed.</p>
<form method="post" action="/login"><input name="username" autocomplete="username" value="trl" hidden><input name="token" type="password" autocomplete="current-password" aria-label="token" required> <button>Log in</button></form>
<script nonce="{{.}}">
const m = /^#token=(.+)$/.exec(location.hash);
if (m) {
  history.replaceState(null, "", "/login");
  fetch("/login", {method: "POST", headers: {Authorization: "Bearer " + decodeURIComponent(m[1])}}).then(r => {
    if (r.ok) location.replace("/");
    else document.getElementById("say").textContent = "This token is not valid.";
  });
}
</script>
`))

// home is the web terminal, for those who are logged in.
func (s *Server) home(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.authenticate(r); !ok {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	ui.ServePage(w, rand.Text())
}

func (s *Server) page(t *template.Template) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		nonce := rand.Text()
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
			"'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "same-origin") // with "no-referrer" the form is posted with "null" for its Origin, and refused
		t.Execute(w, nonce)
	}
}

// login checks a token and puts it into a cookie that scripts cannot read and other sites cannot make the browser send.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	form := r.Header.Get("Authorization") == ""
	var token string
	if form {
		r.Body = http.MaxBytesReader(w, r.Body, 8<<10)
		token = r.PostFormValue("token") // never from the query
	} else {
		var ok bool
		if token, ok = credential(r); !ok {
			token = ""
		}
	}
	if !s.cfg.AuthNone {
		who, ok := s.cfg.Tokens.Lookup(strings.TrimSpace(token))
		if !ok {
			s.refused(r, "login")
			refuse(w, http.StatusUnauthorized, "this token is not valid")
			return
		}
		s.cfg.Audit.Append(audit.Entry{Action: audit.ActionLogin, Outcome: "ok", Principal: who.Subject, Role: string(who.Role), Remote: r.RemoteAddr})
		http.SetCookie(w, &http.Cookie{
			Name:     cookieName(r),
			Value:    base64.RawURLEncoding.EncodeToString([]byte(strings.TrimSpace(token))),
			Path:     "/",
			MaxAge:   int((30 * 24 * time.Hour).Seconds()),
			HttpOnly: true,
			Secure:   r.TLS != nil,
			SameSite: http.SameSiteStrictMode,
		})
	}
	if form {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
