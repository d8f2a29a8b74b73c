package web

import (
	"crypto/rand"
	"errors"
	"html"
	"net/http"
	"strings"

	"trl/web/auth"
	"trl/web/ui"
)

// loginPage takes the token out of the fragment, which browsers send to no server, and out of the address bar, and posts it.
const loginPage = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>trl: log in</title>
<style nonce="{NONCE}">
:root { color-scheme: light dark; }
:root[data-theme=light] { color-scheme: light; }
:root[data-theme=dark] { color-scheme: dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; min-height: 100vh; display: grid; place-items: center; background: light-dark(#f5f6f7, #0f1114); color: light-dark(#1f2328, #d6dae0); }
main { box-sizing: border-box; width: min(26em, 94vw); padding: 24px 28px 28px; background: light-dark(#fff, #1c1f24); border: 1px solid light-dark(#dde0e4, #272b31); border-radius: 10px; }
h1 { font: 600 24px ui-monospace, monospace; margin: 0 0 12px; }
h1::before { content: "› "; color: light-dark(#0a5dc2, #7ab8ff); }
p { margin: 0 0 12px; }
p:empty { margin: 0; }
.hint { margin: 14px 0 0; }
.bad { color: light-dark(#b3261e, #f58a87); }
.hint { color: light-dark(#5b636d, #949ca8); font-size: 13px; }
label { display: block; font-weight: 600; margin-bottom: 4px; }
input, button, .provider { box-sizing: border-box; width: 100%; font: inherit; color: inherit; padding: 7px 10px; border: 1px solid light-dark(#c5cad1, #3a4048); border-radius: 5px; }
input { background: light-dark(#fff, #15171a); }
button, .provider { display: block; margin: 12px 0 0; text-align: center; text-decoration: none; cursor: pointer; background: light-dark(#0a5dc2, #7ab8ff); border-color: transparent; color: light-dark(#fff, #0f1114); }
.provider { margin: 0 0 16px; }
:focus-visible { outline: 2px solid light-dark(#0a5dc2, #7ab8ff); outline-offset: 1px; }
</style>
<main>
<h1>trl</h1>
{PROVIDER}
<p id="say" class="bad" role="status">{SAID}</p>
<form method="post" action="/login"><input name="username" autocomplete="username" value="trl" hidden><label for="token">Token</label><input id="token" name="token" type="password" autocomplete="current-password" aria-describedby="hint" required autofocus><button>Log in</button></form>
<p id="hint" class="hint">The token that <code>trl serve</code> printed, or one of <code>trl token create</code>.</p>
</main>
<script nonce="{NONCE}">
try {
  document.documentElement.dataset.theme = JSON.parse(localStorage.getItem("trl.settings"))?.theme; // as the person chose on the page
} catch {}
const enter = () => {
  const m = /^#token=(.+)$/.exec(location.hash);
  if (!m) return;
  history.replaceState(null, "", "/login");
  fetch("/login", {method: "POST", headers: {Authorization: "Bearer " + decodeURIComponent(m[1])}}).then(async r => {
    if (r.ok) {
      const at = r.headers.get("Location");
      if (at) localStorage.setItem("trl.at", at);
      location.replace("/");
    } else document.getElementById("say").textContent = r.status === 401 ? "The link that you opened does not log you in: its token is not valid here. It may have been replaced or revoked, or is of another server." : await r.text();
  });
};
addEventListener("hashchange", enter); // the link was pasted where this page is already
enter();
</script>
`

// enteredPage stores in the browser the path of its cookie, and goes on to the terminal. The path is not in a fragment, because anybody could make a
// link with one.
const enteredPage = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>trl</title>
<p><a href="/" data-at="{AT}">Logged in.</a></p>
<script nonce="{NONCE}">
localStorage.setItem("trl.at", document.querySelector("a").dataset.at);
location.replace("/");
</script>
`

// serveHome serves the web terminal. The page is no secret; it asks whether the browser is logged in. A cookie that comes with this request has a
// path for which the browser would send it to every server on this host, so serveHome deletes it.
func (s *Server) serveHome(w http.ResponseWriter, r *http.Request) {
	auth.DropCookie(w, r)
	if _, no := s.auth.Authenticate(r); no != nil && !no.NoCredential() {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	ui.ServePage(w, rand.Text())
}

// serveLoginState tells the page whether it is logged in. It deletes the cookie of a login that is over, which would be tried before any other
// credential of the browser.
func (s *Server) serveLoginState(w http.ResponseWriter, r *http.Request) {
	if _, no := s.auth.Authenticate(r); no != nil {
		if no.IsForNow() {
			auth.Deny(w, no)
			return
		}
		if no.OfLogin() {
			auth.DropCookie(w, r)
		}
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// stripLoginPath serves routes that need a login below the path of the login's cookie.
func stripLoginPath(h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.StripPrefix(auth.LoginPrefix+r.PathValue("login"), h).ServeHTTP(w, r)
	}
}

// serveAsset serves the files of the page. They are no secret. A client that is slow to take them should be logged in, because strangers have little
// time.
func (s *Server) serveAsset(w http.ResponseWriter, r *http.Request) {
	s.auth.MarkKnown(r)
	ui.ServeAsset(w, r)
}

func (s *Server) showLogin(w http.ResponseWriter, _ *http.Request) {
	s.showLoginPage(w, http.StatusOK, "")
}

// showLoginPage shows the form, and why the last attempt failed.
func (s *Server) showLoginPage(w http.ResponseWriter, status int, why string) {
	provider := ""
	if name := s.auth.ProviderName(); name != "" {
		provider = `<a class="provider" href="/login/oidc">Log in with ` + html.EscapeString(name) + `</a>`
	}
	writePage(w, status, loginPage, "{PROVIDER}", provider, "{SAID}", html.EscapeString(why))
}

// showEntered goes on to the terminal; path is that of the login's cookie.
func showEntered(w http.ResponseWriter, path string) {
	writePage(w, http.StatusOK, enteredPage, "{AT}", html.EscapeString(path))
}

// writePage answers with a page whose only scripts and styles are its own. values are names in the text, each with the HTML that comes in its place.
// There is no html/template in trl: with text/template, which it needs, Go's linker must keep every exported method of every type.
func writePage(w http.ResponseWriter, status int, page string, values ...string) {
	nonce := rand.Text()
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "same-origin") // with "no-referrer" browsers post the form with the Origin "null", which is refused
	w.WriteHeader(status)
	_, _ = strings.NewReplacer(append(values, "{NONCE}", nonce)...).WriteString(w, page)
}

// login checks a token or a JWT and logs the browser in: the browser gets a cookie of its own, which allows the same for no longer.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	form := r.Header.Get("Authorization") == ""
	if !s.cfg.AuthNone {
		var text string
		if form {
			r.Body = http.MaxBytesReader(w, r.Body, 32<<10)
			text = strings.TrimSpace(r.PostFormValue("token")) // never from the URL's query
		}
		g, no := s.auth.CheckLogin(r, form, text)
		if no != nil && form {
			status, words := no.Answer(w.Header())
			auth.Challenge(w.Header(), status)
			s.showLoginPage(w, status, strings.ToUpper(words[:1])+words[1:]+".")
			return
		}
		if no != nil {
			auth.Deny(w, no)
			return
		}
		if !s.auth.AdmitRequest(w, g) {
			return
		}
		defer g.EndRequest()
		s.auditLogin(r, g.Principal)
		path, err := s.auth.BeginLogin(w, r, g, auth.LoginLifetime)
		if err != nil {
			s.loginNotStored(w, err)
			return
		}
		if form {
			showEntered(w, path)
			return
		}
		w.Header().Set("Location", path)
	}
	if form {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// loginNotStored answers a login whose credential is right and that cannot be stored.
func (s *Server) loginNotStored(w http.ResponseWriter, err error) {
	if errors.Is(err, auth.ErrTooManyLogins) {
		w.Header().Set("Retry-After", retryAfter)
		auth.Refuse(w, http.StatusServiceUnavailable, auth.ErrTooManyLogins.Error())
		return
	}
	s.log.Error().Err(err).Msg("login cannot be kept")
	auth.Refuse(w, http.StatusInternalServerError, "the login cannot be kept")
}

// logout ends the browser's login and the connections of all its tabs.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	if err := s.auth.EndLogin(w, r); errors.Is(err, auth.ErrNotLoggedOut) {
		w.Header().Set("Retry-After", retryAfter)
		auth.Refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	} else if err != nil {
		s.log.Error().Err(err).Msg(auth.LoginInFile)
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// finishOIDC logs in a browser that comes back from the identity provider.
func (s *Server) finishOIDC(w http.ResponseWriter, r *http.Request) {
	g, life, ok := s.auth.FinishOIDC(w, r)
	if !ok {
		return
	}
	s.auditLogin(r, g.Principal)
	path, err := s.auth.BeginLogin(w, r, g, life)
	if err != nil {
		s.loginNotStored(w, err)
		return
	}
	showEntered(w, path)
}
