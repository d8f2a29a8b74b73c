package auth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// OIDCConfig says with which OpenID provider people may log in to the page.
type OIDCConfig struct {
	Issuer       string
	ClientID     string
	SecretFile   string        // the secret of a confidential client, read at each login; empty: a public client, with PKCE only
	RedirectURL  string        // https://HOST/login/oidc/callback, as registered at the provider
	Scopes       []string      // requested in addition to openid
	Role         RoleRule      // the role by the ID token's claims
	SessionLasts time.Duration // how long a login lasts, because the person's rights may change; 12 h
}

const (
	OIDCPath     = "/login/oidc"
	CallbackPath = "/login/oidc/callback"
	// loginAttemptLifetime is how long a person may take at the provider: passwords, a second factor.
	loginAttemptLifetime = 10 * time.Minute
	// discoveryLasts is how long the provider's description of itself counts.
	discoveryLasts = time.Hour
)

// Check returns an error for a configuration that could not work.
func (c *OIDCConfig) Check() error {
	if c.ClientID == "" {
		return errors.New("OIDC: a client id is needed")
	}
	if err := checkProviderURL(c.Issuer); err != nil {
		return fmt.Errorf("OIDC issuer: %w", err)
	}
	if err := checkProviderURL(c.RedirectURL); err != nil {
		return fmt.Errorf("OIDC redirect URL: %w", err)
	}
	if u, err := url.Parse(c.RedirectURL); err != nil || u.Path != CallbackPath || u.RawQuery != "" {
		return errors.New("OIDC redirect URL: its path is " + CallbackPath)
	}
	return nil
}

// oidcLogin logs people in by the authorization code flow with PKCE, state and nonce. The state of an attempt is in a cookie of the browser, so
// strangers who begin many attempts use no memory here.
type oidcLogin struct {
	c      *OIDCConfig
	client *http.Client

	discoverSlot chan struct{} // holds one token; the goroutine that has it may ask the provider for its description

	mu       sync.Mutex
	provider *oidc.Provider // guarded by mu; nil: the provider has not answered yet
	at       time.Time      // guarded by mu; when the provider was last asked
}

func newOIDC(c *OIDCConfig) *oidcLogin {
	return &oidcLogin{c: c, client: providerClient(), discoverSlot: make(chan struct{}, 1)}
}

// discover asks the provider for its addresses, keys and algorithms. This happens at the first login and not at the start, when the provider may not
// be up yet.
func (o *oidcLogin) discover(ctx context.Context) (*oidc.Provider, error) {
	if p := o.cachedProvider(); p != nil {
		return p, nil
	}
	select {
	case o.discoverSlot <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-o.discoverSlot }()
	if p := o.cachedProvider(); p != nil { // another login has asked meanwhile
		return p, nil
	}
	p, err := oidc.NewProvider(o.context(context.Background()), o.c.Issuer) // not a request's context, because the provider's keys are fetched with it later
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.provider = p
	}
	if o.provider == nil {
		return nil, err
	}
	o.at = time.Now() // if it does not answer now, the old description counts
	return o.provider, nil
}

// cachedProvider returns the provider's recent description, else nil.
func (o *oidcLogin) cachedProvider() *oidc.Provider {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.at) < discoveryLasts {
		return o.provider
	}
	return nil
}

func (o *oidcLogin) context(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, o.client)
}

func (o *oidcLogin) oauth(p *oidc.Provider) (*oauth2.Config, error) {
	c := &oauth2.Config{
		ClientID: o.c.ClientID, Endpoint: p.Endpoint(), RedirectURL: o.c.RedirectURL,
		Scopes: append([]string{oidc.ScopeOpenID}, o.c.Scopes...),
	}
	if o.c.SecretFile == "" {
		return c, nil
	}
	text, err := os.ReadFile(o.c.SecretFile)
	c.ClientSecret = strings.TrimSpace(string(text))
	return c, err
}

// loginAttempt is one way of a browser to the provider and back.
type loginAttempt struct{ state, nonce, verifier string }

func loginAttemptCookie(r *http.Request) string { return cookieName(r) + "_oidc" }

// setLoginAttempt stores the attempt in a cookie, with SameSite=Lax because the browser comes back from another site.
func setLoginAttempt(w http.ResponseWriter, r *http.Request, value string) {
	c := &http.Cookie{Name: loginAttemptCookie(r), Value: value, Path: OIDCPath, MaxAge: int(loginAttemptLifetime.Seconds()), HttpOnly: true, Secure: IsSecure(r), SameSite: http.SameSiteLaxMode}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

func loginAttemptOf(r *http.Request) (a loginAttempt, ok bool) {
	c, err := r.Cookie(loginAttemptCookie(r))
	if err != nil {
		return a, false
	}
	parts := strings.Split(c.Value, ".")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return a, false
	}
	return loginAttempt{parts[0], parts[1], parts[2]}, true
}

// BeginOIDC redirects the browser to the provider.
func (c *Checker) BeginOIDC(w http.ResponseWriter, r *http.Request) {
	if c.refuseThrottled(w, r) {
		return
	}
	p, err := c.oidc.discover(r.Context())
	if err == nil {
		err = checkProviderURL(p.Endpoint().AuthURL)
	}
	var client *oauth2.Config
	if err == nil {
		client, err = c.oidc.oauth(p)
	}
	if err != nil {
		c.failOIDC(w, r, unavailable, err)
		return
	}
	a := loginAttempt{rand.Text(), rand.Text(), oauth2.GenerateVerifier()}
	setLoginAttempt(w, r, a.state+"."+a.nonce+"."+a.verifier)
	http.Redirect(w, r, client.AuthCodeURL(a.state, oidc.Nonce(a.nonce), oauth2.S256ChallengeOption(a.verifier)), http.StatusSeeOther)
}

// refuseThrottled answers a client whose address has sent too many wrong credentials.
func (c *Checker) refuseThrottled(w http.ResponseWriter, r *http.Request) bool {
	if c.wrongCredentials.wait(ClientAddr(r), time.Now()) == 0 {
		return false
	}
	Deny(w, c.recordOutcome(r, byOIDC, throttled, nil))
	return true
}

// FinishOIDC handles the browser's return from the provider. If ok, g is who logs in, and life is how long the login lasts; else the answer has been
// written.
func (c *Checker) FinishOIDC(w http.ResponseWriter, r *http.Request) (g *Grant, life time.Duration, ok bool) {
	if c.refuseThrottled(w, r) {
		return nil, 0, false
	}
	a, ok := loginAttemptOf(r)
	setLoginAttempt(w, r, "") // an attempt counts only once
	q := r.URL.Query()
	if !ok || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(a.state)) != 1 || q.Get("code") == "" {
		c.failOIDC(w, r, malformedCredential, errors.New("no login of this browser, or the provider refused it"))
		return nil, 0, false
	}
	who, err := c.oidc.finish(r.Context(), q.Get("code"), a)
	if err != nil {
		why := Unknown
		if errors.Is(err, errProvider) {
			why = unavailable
		}
		c.failOIDC(w, r, why, err)
		return nil, 0, false
	}
	c.recordOutcome(r, byOIDC, Accepted, nil)
	return &Grant{Principal: who}, cmp.Or(c.oidc.c.SessionLasts, 12*time.Hour), true
}

// finish gets the ID token for the code and checks it.
func (o *oidcLogin) finish(ctx context.Context, code string, a loginAttempt) (who Principal, err error) {
	p, err := o.discover(ctx)
	if err != nil {
		return who, fmt.Errorf("%w: %w", errProvider, err)
	}
	c, err := o.oauth(p)
	if err != nil {
		return who, fmt.Errorf("%w: %w", errProvider, err)
	}
	answer, err := c.Exchange(o.context(ctx), code, oauth2.VerifierOption(a.verifier))
	if err != nil {
		return who, withoutProviderText(err)
	}
	raw, _ := answer.Extra("id_token").(string)
	id, err := p.Verifier(&oidc.Config{ClientID: o.c.ClientID}).Verify(ctx, raw) // checks the signature, iss, aud and exp
	if err != nil && strings.Contains(err.Error(), "fetching keys ") {           // go-oidc has no error value for it; the text has the provider's answer
		return who, fmt.Errorf("%w: its keys cannot be fetched", errProvider)
	}
	if err != nil {
		return who, err
	}
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil {
		return who, err
	}
	switch {
	case subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(a.nonce)) != 1:
		return who, errors.New("ID token of another login")
	case len(id.Audience) > 1 && claims["azp"] != o.c.ClientID: // OpenID Connect Core, section 3.1.3.7
		return who, errors.New("ID token for another client")
	}
	who, ok := o.c.Role.principal(o.c.Issuer, id.Subject, claims)
	if !ok {
		return who, errors.New("ID token without a usable subject or role")
	}
	return who, nil
}

// errProvider means that the provider could not be asked, so nothing is known of the person.
var errProvider = errors.New("the identity provider does not answer")

// withoutProviderText removes the provider's answer from an error, because that may be any text.
func withoutProviderText(err error) error {
	e, refused := errors.AsType[*oauth2.RetrieveError](err)
	if !refused {
		return fmt.Errorf("%w: %w", errProvider, err)
	}
	if status := e.Response.StatusCode; status >= 500 || status == http.StatusTooManyRequests {
		return fmt.Errorf("%w: status %d", errProvider, status)
	}
	return fmt.Errorf("code refused: status %d", e.Response.StatusCode)
}

// failOIDC counts an attempt as wrong only if the provider was asked: any page can send a browser to the callback without an attempt.
func (c *Checker) failOIDC(w http.ResponseWriter, r *http.Request, why Outcome, err error) {
	if why == Unknown {
		c.wrongCredentials.add(ClientAddr(r), time.Now())
	}
	Deny(w, c.recordOutcome(r, byOIDC, why, err))
}

// ProviderName is the provider's name on the login page; "": there is no provider.
func (c *Checker) ProviderName() string {
	if c.oidc == nil {
		return ""
	}
	u, err := url.Parse(c.oidc.c.Issuer)
	if err != nil {
		return c.oidc.c.Issuer
	}
	return u.Host
}
