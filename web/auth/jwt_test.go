package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/internal/testkit/issuer"

	"github.com/go-jose/go-jose/v4"
	"github.com/rs/zerolog"
)

func configOf(i *issuer.Issuer) JWTConfig {
	return JWTConfig{JWKS: i.URL + "/keys", Issuer: i.URL, Audience: "trl", Role: RoleRule{DefaultRole: User}}
}

// encoded is one part of a token.
func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func TestJWTs(t *testing.T) {
	i := issuer.New(t)
	for name, c := range map[string]JWTConfig{
		"JWKS": configOf(i),
		"file": {KeyFile: issuer.PEMFile(t, "PUBLIC KEY", issuer.SPKI(t, i.Key.Public())), Issuer: i.URL, Audience: "trl", Role: RoleRule{DefaultRole: User}},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := OpenJWT(c, zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			g, why := j.verify(t.Context(), i.Sign(nil))
			if why != Accepted || g.Principal != (Principal{i.URL + "#ann", User}) || time.Until(g.Expires()) < 50*time.Minute {
				t.Fatalf("%v %+v", why, g)
			}
			for what, change := range map[string]func(issuer.Claims){
				"another issuer": func(c issuer.Claims) { c["iss"] = i.URL + "x" }, "no issuer": func(c issuer.Claims) { delete(c, "iss") },
				"another audience": func(c issuer.Claims) { c["aud"] = "other" }, "no audience": func(c issuer.Claims) { delete(c, "aud") },
				"no expiry": func(c issuer.Claims) { delete(c, "exp") }, "expired": func(c issuer.Claims) { c["exp"] = time.Now().Add(-time.Minute).Unix() },
				"not yet": func(c issuer.Claims) { c["nbf"] = time.Now().Add(time.Minute).Unix() }, "from the future": func(c issuer.Claims) { c["iat"] = time.Now().Add(time.Hour).Unix() },
				"no subject": func(c issuer.Claims) { delete(c, "sub") }, "a subject of two lines": func(c issuer.Claims) { c["sub"] = "a\nb" },
				"a long subject": func(c issuer.Claims) { c["sub"] = strings.Repeat("a", 300) }, "a long token": func(c issuer.Claims) { c["x"] = strings.Repeat("a", maxJWT) },
				"an expiry of another type": func(c issuer.Claims) { c["exp"] = "tomorrow" },
			} {
				if g, why := j.verify(t.Context(), i.Sign(change)); why == Accepted {
					t.Errorf("%s: %+v", what, g)
				}
			}
			if _, why := j.verify(t.Context(), i.Sign(func(c issuer.Claims) { c["exp"] = time.Now().Add(-time.Minute).Unix() })); why != expired {
				t.Errorf("expired is %s", why)
			}
			if g, _ := j.verify(t.Context(), i.Sign(func(c issuer.Claims) { c["trl_role"] = "viewer" })); g == nil || g.Role != Viewer {
				t.Errorf("role: %+v", g)
			}

			// Signatures that are none, of others, or of another algorithm.
			parts := strings.Split(i.Sign(nil), ".")
			other, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			forged := issuer.Signed(t, jose.ES256, other, i.Claims(), issuer.Header{"kid": "one"})
			selfMade := issuer.Signed(t, jose.ES256, other, i.Claims(), issuer.Header{"kid": "one", "jwk": jose.JSONWebKey{Key: other.Public()}}) // it brings its own key
			withCrit := issuer.Signed(t, jose.ES256, i.Key, i.Claims(), issuer.Header{"kid": "one", "crit": []string{"exp"}})
			public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: issuer.SPKI(t, i.Key.Public())})
			confused := issuer.Signed(t, jose.HS256, public, i.Claims(), nil)
			for what, text := range map[string]string{
				"no signature": parts[0] + "." + parts[1] + ".", "alg none": encoded(`{"alg":"none"}`) + "." + parts[1] + ".", "alg None": encoded(`{"alg":"None"}`) + "." + parts[1] + ".",
				"public key as HMAC secret": confused, "another key": forged, "its own key": selfMade, "critical": withCrit,
				"another's signature": parts[0] + "." + strings.Split(i.Sign(func(c issuer.Claims) { c["sub"] = "bob" }), ".")[1] + "." + parts[2],
				"unknown kid":         encoded(`{"alg":"ES256","kid":"two"}`) + "." + parts[1] + "." + parts[2], "garbage": "eyJ.eyJ.x", "empty": "",
			} {
				if g, why := j.verify(t.Context(), text); why == Accepted {
					t.Errorf("%s: %+v", what, g)
				}
			}

			// What is no token at all, or a right one in another spelling, is malformed.
			right := strings.Split(i.Sign(nil), ".")
			for what, text := range map[string]string{
				"garbage": "eyJ.eyJ.x", "two parts": right[0] + "." + right[1], "four parts": strings.Join(right, ".") + ".", "a header that is no object": encoded("7") + "." + right[1] + "." + right[2],
				"claims that are no object": right[0] + "." + encoded("[]") + "." + right[2], "padding": strings.Join(right, ".") + "==", "a signature with stray bits": right[0] + "." + right[1] + "." + stray(right[2]),
				"claims with a line break": right[0] + "." + right[1][:4] + "\n" + right[1][4:] + "." + right[2], "a header with a line break": right[0][:4] + "\r\n" + right[0][4:] + "." + right[1] + "." + right[2],
				"a long token": i.Sign(func(c issuer.Claims) { c["x"] = strings.Repeat("a", maxJWT) }),
			} {
				if _, why := j.verify(t.Context(), text); why != malformedCredential {
					t.Errorf("%s: %s", what, why)
				}
			}
			// Claims whose length is no multiple of three leave bits in their last character.
			for _, sub := range []string{"a", "aa", "aaa"} {
				p := strings.Split(i.Sign(func(c issuer.Claims) { c["sub"] = sub }), ".")
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
	public := issuer.PEMFile(t, "PUBLIC KEY", issuer.SPKI(t, edwards.Public()))
	base := JWTConfig{Issuer: "https://i", Audience: "a"}
	for what, c := range map[string]struct {
		key, jwks string
		algs      []string
		ok        bool
	}{
		"Ed25519": {public, "", nil, true}, "HMAC": {secret, "", []string{"HS256"}, true}, "no key": {"", "", nil, false}, "both": {public, "https://i/k", nil, false},
		"public key for HMAC": {public, "", []string{"HS256"}, false}, "mixed": {secret, "", []string{"HS256", "RS256"}, false}, "secret for RSA": {secret, "", nil, false},
		"short secret": {short, "", []string{"HS256"}, false}, "none": {public, "", []string{"none"}, false}, "weak": {issuer.PEMFile(t, "PUBLIC KEY", issuer.SPKI(t, weak.Public())), "", nil, false},
		"HMAC of a URL": {"", "https://i/k", []string{"HS256"}, false}, "plain HTTP": {"", "http://i.example/k", nil, false}, "look-alike": {"", "http://localhost.evil.example/k", nil, false},
		"file URL": {"", "file:///etc/passwd", nil, false}, "https": {"", "https://i/k", nil, true}, "loopback": {"", "http://127.0.0.1:1/k", nil, true}, "not there": {"/nonexistent", "", nil, false},
		"private key": {issuer.PEMFile(t, "EC PRIVATE KEY", []byte("x")), "", nil, false},
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
	i := issuer.New(t)
	secret := filepath.Join(t.TempDir(), "secret")
	os.WriteFile(secret, []byte(strings.Repeat("s", minSecret)), 0o600)
	body, _ := json.Marshal(i.Claims())
	shared := encoded(`{"alg":"HS512"}`) + "." + encoded(string(body)) // by hand: go-jose signs with no secret as short as this
	mac := hmac.New(sha512.New, []byte(strings.Repeat("s", minSecret)))
	mac.Write([]byte(shared))
	shared += "." + encoded(string(mac.Sum(nil)))
	for alg, c := range map[string]struct{ key, text string }{
		"ES256": {issuer.PEMFile(t, "PUBLIC KEY", issuer.SPKI(t, i.Key.Public())), i.Sign(nil)}, "HS512": {secret, shared},
	} {
		for other, want := range map[string]Outcome{alg: Accepted, alg[:2] + "384": Unknown} {
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
	i := issuer.WithKey(t, one)
	path := issuer.PEMFile(t, "PUBLIC KEY", issuer.SPKI(t, one.Public()))
	j, err := OpenJWT(JWTConfig{KeyFile: path, Issuer: i.URL, Audience: "trl", Role: RoleRule{DefaultRole: User}}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	before := i.Sign(nil)
	i.Key = two
	after := i.Sign(nil)
	if _, why := j.verify(t.Context(), after); why == Accepted {
		t.Fatal("a key that is not there")
	}
	os.Rename(issuer.PEMFile(t, "PUBLIC KEY", issuer.SPKI(t, two.Public())), path)
	testkit.Eventually(t, "the new key", func() bool {
		_, a := j.verify(t.Context(), after)
		_, b := j.verify(t.Context(), before)
		return a == Accepted && b != Accepted
	})
}

// TestKeysAreFetchedSeldom: key ids that anybody can make up do not make us ask the provider as often.
func TestKeysAreFetchedSeldom(t *testing.T) {
	testkit.TakesLong(t)
	i := issuer.New(t)
	j, err := OpenJWT(configOf(i), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if _, why := j.verify(t.Context(), issuer.Signed(t, jose.ES256, i.Key, i.Claims(), issuer.Header{"kid": rand.Text()})); why == Accepted {
					t.Error("an unknown key id")
				}
			}
		})
	}
	wg.Wait()
	if n := i.Fetched.Load(); n < 1 || n > 10 {
		t.Errorf("%d fetches", n)
	}
	// A provider that changes its key is followed.
	i.SetKeyID("two")
	testkit.Eventually(t, "the new key", func() bool { _, why := j.verify(t.Context(), i.Sign(nil)); return why == Accepted })
	i.Close()
	if _, why := j.verify(t.Context(), i.Sign(nil)); why != Accepted {
		t.Error("keys are gone with the provider")
	}
	nobody, _ := OpenJWT(configOf(i), zerolog.Nop())
	if _, why := nobody.verify(t.Context(), i.Sign(nil)); why != unavailable {
		t.Errorf("without any key: %s", why)
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

func TestOIDCConfig(t *testing.T) {
	good := OIDCConfig{Issuer: "https://i", ClientID: "trl", RedirectURL: "https://t" + CallbackPath}
	for what, change := range map[string]func(*OIDCConfig){
		"no client": func(c *OIDCConfig) { c.ClientID = "" }, "plain issuer": func(c *OIDCConfig) { c.Issuer = "http://i" }, "plain redirect": func(c *OIDCConfig) { c.RedirectURL = "http://t" + CallbackPath },
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
