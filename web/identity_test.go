package web

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trl/internal/testkit"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/rs/zerolog"
)

// claims are what a token says.
type claims = map[string]any

// issuer is an OpenID provider: discovery, keys, an authorization endpoint that asks nobody, codes with PKCE, signed ID tokens.
type issuer struct {
	*httptest.Server
	t       testing.TB
	key     *ecdsa.PrivateKey
	fetched atomic.Int64 // how often the keys were asked for

	mu     sync.Mutex
	kid    string                // guarded by mu
	codes  map[string]url.Values // guarded by mu; what each was asked for with
	change func(claims)          // guarded by mu; of ID tokens, before they are signed
}

func newIssuer(t testing.TB) *issuer {
	i := &issuer{t: t, kid: "one", codes: map[string]url.Values{}}
	var err error
	if i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token",
			"jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}, "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, r *http.Request) {
		i.fetched.Add(1)
		i.mu.Lock()
		defer i.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		ours, _ := jose.JSONWebKey{Key: i.key.Public(), KeyID: i.kid, Use: "sig", Algorithm: "ES256"}.MarshalJSON()
		w.Write([]byte(`{"keys":[{"kty":"new-kind","kid":"x"},` + string(ours) + `]}`))
	})
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		code := rand.Text()
		i.mu.Lock()
		i.codes[code] = q
		i.mu.Unlock()
		back, _ := url.Parse(q.Get("redirect_uri"))
		back.RawQuery = url.Values{"code": {code}, "state": {q.Get("state")}}.Encode()
		http.Redirect(w, r, back.String(), http.StatusSeeOther)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		q, known := i.codes[r.PostFormValue("code")]
		delete(i.codes, r.PostFormValue("code"))
		change := i.change
		i.mu.Unlock()
		id, secret, _ := r.BasicAuth()
		challenge := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if !known || id != "trl" || secret != "client-secret" || q.Get("code_challenge_method") != "S256" ||
			q.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(challenge[:]) || q.Get("redirect_uri") != r.PostFormValue("redirect_uri") {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		token := i.sign(func(c claims) {
			c["nonce"] = q.Get("nonce")
			if change != nil {
				change(c)
			}
		})
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"access_token": "unused", "token_type": "Bearer", "id_token": token})
	})
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) claims() claims {
	return claims{"iss": i.URL, "aud": "trl", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
}

// sign makes a token that is right in all, but for what change makes of it.
func (i *issuer) sign(change func(claims)) string {
	c := i.claims()
	if change != nil {
		change(c)
	}
	i.mu.Lock()
	kid := i.kid
	i.mu.Unlock()
	return signed(i.t, jose.ES256, i.key, c, header{"kid": kid})
}

// header is what a token has in its header, apart from the algorithm.
type header = map[jose.HeaderKey]any

func signed(t testing.TB, alg jose.SignatureAlgorithm, key any, c claims, h header) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, &jose.SignerOptions{ExtraHeaders: h})
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// encoded is one part of a token.
func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func (i *issuer) config() JWTConfig {
	return JWTConfig{JWKS: i.URL + "/keys", Issuer: i.URL, Audience: "trl", Role: RoleRule{DefaultRole: User}}
}

func pemFile(t testing.TB, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func spki(t testing.TB, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestJWTs(t *testing.T) {
	i := newIssuer(t)
	for name, c := range map[string]JWTConfig{
		"JWKS": i.config(),
		"file": {KeyFile: pemFile(t, "PUBLIC KEY", spki(t, i.key.Public())), Issuer: i.URL, Audience: "trl", Role: RoleRule{DefaultRole: User}},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := OpenJWT(c, zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			g, why := j.verify(t.Context(), i.sign(nil))
			if why != accepted || g.Principal != (Principal{i.URL + "#ann", User}) || time.Until(g.expires()) < 50*time.Minute {
				t.Fatalf("%v %+v", why, g)
			}
			for what, change := range map[string]func(claims){
				"another issuer": func(c claims) { c["iss"] = i.URL + "x" }, "no issuer": func(c claims) { delete(c, "iss") },
				"another audience": func(c claims) { c["aud"] = "other" }, "no audience": func(c claims) { delete(c, "aud") },
				"no expiry": func(c claims) { delete(c, "exp") }, "expired": func(c claims) { c["exp"] = time.Now().Add(-time.Minute).Unix() },
				"not yet": func(c claims) { c["nbf"] = time.Now().Add(time.Minute).Unix() }, "from the future": func(c claims) { c["iat"] = time.Now().Add(time.Hour).Unix() },
				"no subject": func(c claims) { delete(c, "sub") }, "a subject of two lines": func(c claims) { c["sub"] = "a\nb" },
				"a long subject": func(c claims) { c["sub"] = strings.Repeat("a", 300) }, "a long token": func(c claims) { c["x"] = strings.Repeat("a", maxJWT) },
				"an expiry of another type": func(c claims) { c["exp"] = "tomorrow" },
			} {
				if g, why := j.verify(t.Context(), i.sign(change)); why == accepted {
					t.Errorf("%s: %+v", what, g)
				}
			}
			if _, why := j.verify(t.Context(), i.sign(func(c claims) { c["exp"] = time.Now().Add(-time.Minute).Unix() })); why != expired {
				t.Errorf("expired is %s", why)
			}
			if g, _ := j.verify(t.Context(), i.sign(func(c claims) { c["trl_role"] = "viewer" })); g == nil || g.Role != Viewer {
				t.Errorf("role: %+v", g)
			}

			// Signatures that are none, of others, or of another algorithm.
			parts := strings.Split(i.sign(nil), ".")
			other, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			forged := signed(t, jose.ES256, other, i.claims(), header{"kid": "one"})
			selfMade := signed(t, jose.ES256, other, i.claims(), header{"kid": "one", "jwk": jose.JSONWebKey{Key: other.Public()}}) // it brings its own key
			withCrit := signed(t, jose.ES256, i.key, i.claims(), header{"kid": "one", "crit": []string{"exp"}})
			public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki(t, i.key.Public())})
			confused := signed(t, jose.HS256, public, i.claims(), nil)
			for what, text := range map[string]string{
				"no signature": parts[0] + "." + parts[1] + ".", "alg none": encoded(`{"alg":"none"}`) + "." + parts[1] + ".", "alg None": encoded(`{"alg":"None"}`) + "." + parts[1] + ".",
				"public key as HMAC secret": confused, "another key": forged, "its own key": selfMade, "critical": withCrit,
				"another's signature": parts[0] + "." + strings.Split(i.sign(func(c claims) { c["sub"] = "bob" }), ".")[1] + "." + parts[2],
				"unknown kid":         encoded(`{"alg":"ES256","kid":"two"}`) + "." + parts[1] + "." + parts[2], "garbage": "eyJ.eyJ.x", "empty": "",
			} {
				if g, why := j.verify(t.Context(), text); why == accepted {
					t.Errorf("%s: %+v", what, g)
				}
			}

			// What is no token at all, or a right one in another spelling, is malformed.
			right := strings.Split(i.sign(nil), ".")
			for what, text := range map[string]string{
				"garbage": "eyJ.eyJ.x", "two parts": right[0] + "." + right[1], "four parts": strings.Join(right, ".") + ".", "a header that is no object": encoded("7") + "." + right[1] + "." + right[2],
				"claims that are no object": right[0] + "." + encoded("[]") + "." + right[2], "padding": strings.Join(right, ".") + "==", "a signature with stray bits": right[0] + "." + right[1] + "." + stray(right[2]),
				"claims with a line break": right[0] + "." + right[1][:4] + "\n" + right[1][4:] + "." + right[2], "a header with a line break": right[0][:4] + "\r\n" + right[0][4:] + "." + right[1] + "." + right[2],
				"a long token": i.sign(func(c claims) { c["x"] = strings.Repeat("a", maxJWT) }),
			} {
				if _, why := j.verify(t.Context(), text); why != malformedCredential {
					t.Errorf("%s: %s", what, why)
				}
			}
			// Claims whose length is no multiple of three leave bits in their last character.
			for _, sub := range []string{"a", "aa", "aaa"} {
				p := strings.Split(i.sign(func(c claims) { c["sub"] = sub }), ".")
				if len(p[1])%4 == 0 {
					continue
				}
				if _, why := j.verify(t.Context(), p[0]+"."+stray(p[1])+"."+p[2]); why != malformedCredential {
					t.Errorf("claims with stray bits: %s", why)
				}
			}
		})
	}
}

// stray is the same bytes with a bit set in the last character that encodes none of them.
func stray(part string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(part) - 1
	return part[:last] + string(alphabet[strings.IndexByte(alphabet, part[last])^1])
}

func TestJWTKeys(t *testing.T) {
	weak, _ := rsa.GenerateKey(rand.Reader, 1024)
	_, edwards, _ := ed25519.GenerateKey(rand.Reader)
	secret := filepath.Join(t.TempDir(), "secret")
	os.WriteFile(secret, []byte(strings.Repeat("s", minSecret)), 0o600)
	short := filepath.Join(t.TempDir(), "short")
	os.WriteFile(short, []byte("secret"), 0o600)
	public := pemFile(t, "PUBLIC KEY", spki(t, edwards.Public()))
	base := JWTConfig{Issuer: "https://i", Audience: "a"}
	for what, c := range map[string]struct {
		key, jwks string
		algs      []string
		ok        bool
	}{
		"Ed25519": {public, "", nil, true}, "HMAC": {secret, "", []string{"HS256"}, true}, "no key": {"", "", nil, false}, "both": {public, "https://i/k", nil, false},
		"public key for HMAC": {public, "", []string{"HS256"}, false}, "mixed": {secret, "", []string{"HS256", "RS256"}, false}, "secret for RSA": {secret, "", nil, false},
		"short secret": {short, "", []string{"HS256"}, false}, "none": {public, "", []string{"none"}, false}, "weak": {pemFile(t, "PUBLIC KEY", spki(t, weak.Public())), "", nil, false},
		"HMAC of a URL": {"", "https://i/k", []string{"HS256"}, false}, "plain HTTP": {"", "http://i.example/k", nil, false}, "look-alike": {"", "http://localhost.evil.example/k", nil, false},
		"file URL": {"", "file:///etc/passwd", nil, false}, "https": {"", "https://i/k", nil, true}, "loopback": {"", "http://127.0.0.1:1/k", nil, true}, "not there": {"/nonexistent", "", nil, false},
		"private key": {pemFile(t, "EC PRIVATE KEY", []byte("x")), "", nil, false},
	} {
		conf := base
		conf.KeyFile, conf.JWKS, conf.Algorithms = c.key, c.jwks, c.algs
		j, err := OpenJWT(conf, zerolog.Nop())
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			j.Close()
		}
	}
}

// TestJWTAlgorithmsAreOurs: a right signature counts for nothing when the operator has not named its algorithm.
func TestJWTAlgorithmsAreOurs(t *testing.T) {
	i := newIssuer(t)
	secret := filepath.Join(t.TempDir(), "secret")
	os.WriteFile(secret, []byte(strings.Repeat("s", minSecret)), 0o600)
	body, _ := json.Marshal(i.claims())
	shared := encoded(`{"alg":"HS512"}`) + "." + encoded(string(body)) // by hand: go-jose signs with no secret as short as this
	mac := hmac.New(sha512.New, []byte(strings.Repeat("s", minSecret)))
	mac.Write([]byte(shared))
	shared += "." + encoded(string(mac.Sum(nil)))
	for alg, c := range map[string]struct{ key, text string }{
		"ES256": {pemFile(t, "PUBLIC KEY", spki(t, i.key.Public())), i.sign(nil)}, "HS512": {secret, shared},
	} {
		for other, want := range map[string]authOutcome{alg: accepted, alg[:2] + "384": unknown} {
			j, err := OpenJWT(JWTConfig{KeyFile: c.key, Algorithms: []string{other}, Issuer: i.URL, Audience: "trl", Role: RoleRule{DefaultRole: User}}, zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			if _, why := j.verify(t.Context(), c.text); why != want {
				t.Errorf("%s where %s is taken: %s", alg, other, why)
			}
			j.Close()
		}
	}
}

func TestJWTKeyReload(t *testing.T) {
	one, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	two, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	i := &issuer{t: t, key: one, Server: &httptest.Server{URL: "https://i"}}
	path := pemFile(t, "PUBLIC KEY", spki(t, one.Public()))
	j, err := OpenJWT(JWTConfig{KeyFile: path, Issuer: i.URL, Audience: "trl", Role: RoleRule{DefaultRole: User}}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	before := i.sign(nil)
	i.key = two
	after := i.sign(nil)
	if _, why := j.verify(t.Context(), after); why == accepted {
		t.Fatal("a key that is not there")
	}
	os.Rename(pemFile(t, "PUBLIC KEY", spki(t, two.Public())), path)
	testkit.Eventually(t, "the new key", func() bool {
		_, a := j.verify(t.Context(), after)
		_, b := j.verify(t.Context(), before)
		return a == accepted && b != accepted
	})
}

// TestKeysAreFetchedSeldom: key ids that anybody can make up do not make us ask the provider as often.
func TestKeysAreFetchedSeldom(t *testing.T) {
	testkit.TakesLong(t)
	i := newIssuer(t)
	j, err := OpenJWT(i.config(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if _, why := j.verify(t.Context(), signed(t, jose.ES256, i.key, i.claims(), header{"kid": rand.Text()})); why == accepted {
					t.Error("an unknown key id")
				}
			}
		})
	}
	wg.Wait()
	if n := i.fetched.Load(); n < 1 || n > 10 {
		t.Errorf("%d fetches", n)
	}
	// A provider that changes its key is followed.
	i.mu.Lock()
	i.kid = "two"
	i.mu.Unlock()
	testkit.Eventually(t, "the new key", func() bool { _, why := j.verify(t.Context(), i.sign(nil)); return why == accepted })
	i.Close()
	if _, why := j.verify(t.Context(), i.sign(nil)); why != accepted {
		t.Error("keys are gone with the provider")
	}
	nobody, _ := OpenJWT(i.config(), zerolog.Nop())
	if _, why := nobody.verify(t.Context(), i.sign(nil)); why != unavailable {
		t.Errorf("without any key: %s", why)
	}
}

func TestConnectionsEndWithTheirJWT(t *testing.T) {
	i := newIssuer(t)
	j, err := OpenJWT(i.config(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, withTokens, func(c *Config) { c.JWT = j })
	// A leeway in the past: it is let in, and over before long.
	c := g.dial(i.sign(func(c claims) { c["exp"] = time.Now().Add(-jwtLeeway + 3*time.Second).Unix() }))
	if code := c.closed(); code != 4401 {
		t.Errorf("%d", code)
	}
	g.dial(adminToken).call("system.ping", nil)
	// Its name is one of the issuer's: nobody becomes a token's subject by it.
	ann := g.dial(i.sign(func(c claims) { c["sub"], c["trl_role"] = "bob", "admin" }))
	if who := ann.call("system.capabilities", nil)["principal"].(map[string]any); who["subject"] != i.URL+"#bob" || who["role"] != "admin" {
		t.Errorf("%v", who)
	}
}

func TestRoleRules(t *testing.T) {
	rule := RoleRule{Claim: "groups", Map: map[string]Role{"ops": Admin, "admin": Viewer}, DefaultRole: Viewer}
	for text, want := range map[string]Role{
		`{}`: Viewer, `{"groups":"ops"}`: Admin, `{"groups":["x","user"]}`: User, `{"groups":["user","ops"]}`: Admin, `{"groups":"admin"}`: Viewer,
		`{"groups":["root",7,null]}`: Viewer, `{"groups":{"ops":true}}`: Viewer, `{"trl_role":"admin"}`: Viewer,
	} {
		var claims map[string]any
		if err := json.Unmarshal([]byte(text), &claims); err != nil {
			t.Fatal(err)
		}
		if got, ok := rule.role(claims); !ok || got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
	if _, ok := (RoleRule{}).role(map[string]any{"trl_role": "root"}); ok {
		t.Error("a role that is none")
	}
}

func TestOIDCLogin(t *testing.T) {
	i := newIssuer(t)
	secret := filepath.Join(t.TempDir(), "secret")
	os.WriteFile(secret, []byte("client-secret\n"), 0o600)
	var g *gateway
	conf := &OIDCConfig{Issuer: i.URL, ClientID: "trl", SecretFile: secret, Role: RoleRule{DefaultRole: User}}
	g = start(t, withTokens, func(c *Config) { c.OIDC = conf })
	g.oidc.c.RedirectURL = g.URL() + callbackPath // only now the port is known
	if err := g.oidc.c.Check(); err != nil {
		t.Fatal(err)
	}

	// browser follows redirects to the end, with cookies, and stops where stop says so.
	browser := func(stop string) (*http.Client, *http.Response) {
		t.Helper()
		jar, _ := cookiejar.New(nil)
		b := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if stop != "" && strings.Contains(r.URL.String(), stop) {
				return http.ErrUseLastResponse
			}
			return nil
		}}
		resp, err := b.Get(g.URL() + "/login/oidc")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		b.CloseIdleConnections()
		return b, resp
	}
	visit := func(b *http.Client, address string) *http.Response {
		t.Helper()
		resp, err := b.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	loggedIn := func(resp *http.Response) *http.Cookie {
		for _, c := range resp.Cookies() {
			if strings.HasPrefix(c.Name, "trl_login") && !strings.HasSuffix(c.Name, "_oidc") {
				return c
			}
		}
		return nil
	}
	if _, page := get(t, g.URL()+"/login"); !strings.Contains(page, `href="/login/oidc"`) {
		t.Error("the page has no way there")
	}
	_, resp := browser("/authorize")
	if set := resp.Header.Get("Set-Cookie"); !strings.Contains(set, "SameSite=Lax") || !strings.Contains(set, "HttpOnly") { // the browser comes back from another site
		t.Errorf("cookie of an attempt: %s", set)
	}
	b, resp := browser("")
	set := resp.Header["Set-Cookie"]
	if resp.StatusCode != 200 || resp.Request.URL.Path != callbackPath || loggedIn(resp) == nil || !strings.Contains(strings.Join(set, " "), "SameSite=Strict") || !strings.Contains(strings.Join(set, " "), "HttpOnly") {
		t.Fatalf("%d %s %v", resp.StatusCode, resp.Request.URL, set)
	}
	ws, _, err := g.dialCookie(loggedIn(resp))
	if err != nil {
		t.Fatal(err)
	}
	c := follow(t, ws)
	if who := c.call("system.capabilities", nil)["principal"].(map[string]any); who["subject"] != i.URL+"#ann" || who["role"] != "user" {
		t.Errorf("%v", who)
	}
	if got := visit(b, resp.Request.URL.String()); got.StatusCode == 200 || loggedIn(got) != nil {
		t.Error("a callback twice")
	}

	// A callback without its beginning in this browser, with another state, or with a code that the provider did not give.
	_, resp = browser(callbackPath)
	back, _ := url.Parse(resp.Header.Get("Location"))
	if got := visit(&http.Client{}, back.String()); got.StatusCode != 401 || loggedIn(got) != nil {
		t.Errorf("in another browser: %d", got.StatusCode)
	}
	for _, change := range []url.Values{{"state": {"x"}}, {"state": {""}}, {"code": {""}}, {"code": {"made-up"}}} {
		b, resp = browser(callbackPath)
		back, _ = url.Parse(resp.Header.Get("Location"))
		q := back.Query()
		for k, v := range change {
			q[k] = v
		}
		back.RawQuery = q.Encode()
		if got := visit(b, back.String()); got.StatusCode != 401 || loggedIn(got) != nil {
			t.Errorf("%v: %d", change, got.StatusCode)
		}
	}
	for what, change := range map[string]func(claims){
		"nonce": func(c claims) { c["nonce"] = "x" }, "audience": func(c claims) { c["aud"] = "other" }, "issuer": func(c claims) { c["iss"] = "https://other" },
		"expiry": func(c claims) { c["exp"] = time.Now().Add(-time.Minute).Unix() }, "subject": func(c claims) { c["sub"] = "a b" },
		"two audiences": func(c claims) { c["aud"], c["azp"] = []string{"trl", "other"}, "other" },
	} {
		i.mu.Lock()
		i.change = change
		i.mu.Unlock()
		if _, resp := browser(""); resp.StatusCode != 401 || loggedIn(resp) != nil {
			t.Errorf("another %s: %d", what, resp.StatusCode)
		}
	}
	i.Close()
	g.oidc.mu.Lock()
	g.oidc.provider = nil
	g.oidc.mu.Unlock()
	if _, resp := browser(""); resp.StatusCode != 503 {
		t.Errorf("without a provider: %d", resp.StatusCode)
	}
	if log := g.log.String(); strings.Contains(log, "client-secret") || strings.Contains(log, "eyJ") {
		t.Error("secrets in the log")
	}
}

// TestCallbackLocksNobodyOut: a page of somebody else has a browser ask for the callback as often as it likes, and its person can log in.
func TestCallbackLocksNobodyOut(t *testing.T) {
	i := newIssuer(t)
	g := start(t, withTokens, func(c *Config) {
		c.OIDC = &OIDCConfig{Issuer: i.URL, ClientID: "trl", Role: RoleRule{DefaultRole: User}}
	})
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	visit := func(query, cookie string) int {
		t.Helper()
		q, err := http.NewRequest("GET", g.URL()+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if cookie != "" {
			home, _ := url.Parse(g.URL())
			q.AddCookie(&http.Cookie{Name: "trl_login_" + home.Port() + "_oidc", Value: cookie})
		}
		resp, err := stay.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for range 2 * freeTries {
		if got := visit(callbackPath, "") + visit(callbackPath+"?state=x&code=y", "") + visit(callbackPath+"?state=x&code=y", "a.b.c"); got != 3*401 {
			t.Fatalf("no attempt of this browser: %d", got)
		}
	}
	if got := visit(oidcPath, ""); got != 303 {
		t.Errorf("a login after that: %d", got)
	}
	testkit.Eventually(t, "codes that are guessed are slowed down", func() bool { return visit(callbackPath+"?state=a&code=guess", "a.b.c") == 429 })
}

func TestOIDCConfig(t *testing.T) {
	good := OIDCConfig{Issuer: "https://i", ClientID: "trl", RedirectURL: "https://t" + callbackPath}
	for what, change := range map[string]func(*OIDCConfig){
		"no client": func(c *OIDCConfig) { c.ClientID = "" }, "plain issuer": func(c *OIDCConfig) { c.Issuer = "http://i" }, "plain redirect": func(c *OIDCConfig) { c.RedirectURL = "http://t" + callbackPath },
		"another path": func(c *OIDCConfig) { c.RedirectURL = "https://t/login" }, "a query": func(c *OIDCConfig) { c.RedirectURL += "?x" },
	} {
		c := good
		change(&c)
		if c.Check() == nil {
			t.Errorf("%s is fine", what)
		}
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
}
