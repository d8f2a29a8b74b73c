// Package issuer is an OpenID provider for tests, which also signs JWTs.
package issuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Claims are the claims of a token.
type Claims = map[string]any

// Issuer is an OpenID provider: discovery, keys, an authorization endpoint that asks nobody, codes with PKCE, signed ID tokens.
type Issuer struct {
	*httptest.Server
	t       testing.TB
	Key     *ecdsa.PrivateKey // signs the tokens; set before use
	Fetched atomic.Int64      // how often the keys were requested

	mu     sync.Mutex
	kid    string                // guarded by mu
	codes  map[string]url.Values // guarded by mu; the request for each code
	change func(Claims)          // guarded by mu; changes ID tokens before they are signed
}

// New starts an issuer, which ends with the test.
func New(t testing.TB) *Issuer {
	i := &Issuer{t: t, kid: "one", codes: map[string]url.Values{}}
	var err error
	if i.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token",
			"jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}, "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, r *http.Request) {
		i.Fetched.Add(1)
		i.mu.Lock()
		defer i.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		ours, _ := jose.JSONWebKey{Key: i.Key.Public(), KeyID: i.kid, Use: "sig", Algorithm: "ES256"}.MarshalJSON()
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
		token := i.Sign(func(c Claims) {
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

// Claims returns the claims of a valid token.
func (i *Issuer) Claims() Claims {
	return Claims{"iss": i.URL, "aud": "trl", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
}

// Sign signs a valid token after change has changed it.
func (i *Issuer) Sign(change func(Claims)) string {
	c := i.Claims()
	if change != nil {
		change(c)
	}
	i.mu.Lock()
	kid := i.kid
	i.mu.Unlock()
	return Signed(i.t, jose.ES256, i.Key, c, Header{"kid": kid})
}

// Header is a token's header without the algorithm.
type Header = map[jose.HeaderKey]any

// Signed signs a token with any claims and header.
func Signed(t testing.TB, alg jose.SignatureAlgorithm, key any, c Claims, h Header) string {
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

// PEMFile writes a file with one PEM block.
func PEMFile(t testing.TB, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// SPKI encodes a public key as PEM files have it.
func SPKI(t testing.TB, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// Change makes f change later ID tokens before they are signed.
func (i *Issuer) Change(f func(Claims)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.change = f
}

// SetKeyID gives the key another id.
func (i *Issuer) SetKeyID(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.kid = id
}

// WithKey returns an Issuer that only signs; nobody listens at its address.
func WithKey(t testing.TB, key *ecdsa.PrivateKey) *Issuer {
	return &Issuer{t: t, Key: key, Server: &httptest.Server{URL: "https://i"}}
}
