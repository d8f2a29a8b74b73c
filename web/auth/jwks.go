package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"
)

const (
	// jwksFreshFor is how old the set may get before it is fetched again. jwksUsableFor is how long an old set is used if it cannot be fetched: a
	// provider that is away for a moment locks nobody out, and a key that was withdrawn is not valid for ever.
	jwksFreshFor  = 10 * time.Minute
	jwksUsableFor = time.Hour
	// jwksFetchInterval bounds fetches, because every token with an unknown key id, which anybody can make up, causes one.
	jwksFetchInterval = 10 * time.Second

	providerTimeout = 5 * time.Second
	maxProviderText = 1 << 20
)

// errNoKeys means that there is no key to check a token with, and none could be fetched.
var errNoKeys = errors.New("no keys")

// jwks is a set of public keys that an identity provider publishes. The request that needs the keys fetches them, one request at a time.
type jwks struct {
	url     string
	client  *http.Client
	log     zerolog.Logger
	limiter *rate.Limiter

	fetching chan struct{} // holds one token; the goroutine that has it may fetch

	mu        sync.RWMutex
	keys      []jose.JSONWebKey // guarded by mu
	fetchedAt time.Time         // guarded by mu; when they were fetched
}

func newJWKS(address string, log zerolog.Logger) (*jwks, error) {
	if err := checkProviderURL(address); err != nil {
		return nil, fmt.Errorf("JWKS: %w", err)
	}
	return &jwks{
		url: address, client: providerClient(), log: log, fetching: make(chan struct{}, 1),
		limiter: rate.NewLimiter(rate.Every(jwksFetchInterval), 2), // two, because the keys may change while the first token is checked
	}, nil
}

// checkProviderURL refuses a URL whose answers others could change on the way.
func checkProviderURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil {
		return errors.New("no address of the form https://HOST/…")
	}
	if u.Scheme == "https" || u.Scheme == "http" && LoopbackName(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("%s is neither https nor on this machine", u.Redacted())
}

// providerClient returns the client for requests to identity providers, with bounds on time and size. It refuses every address that trustworthy
// refuses.
func providerClient() *http.Client {
	return &http.Client{
		Timeout:   providerTimeout,
		Transport: boundedTransport{&http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}}, // it is seldom used, so it keeps no connection
	}
}

// boundedTransport bounds the size of answers, and checks every address, also those of redirects and of discovery documents.
type boundedTransport struct{ http.RoundTripper }

func (b boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := checkProviderURL(r.URL.String()); err != nil {
		return nil, err
	}
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxProviderText), resp.Body}
	}
	return resp, err
}

// find returns the key with this id; without an id, the only key that there is.
func (j *jwks) find(ctx context.Context, kid string) (any, error) {
	key, age := j.cached(kid)
	if key == nil || age > jwksFreshFor {
		j.refresh(ctx, age)
		key, age = j.cached(kid)
	}
	switch {
	case age > jwksUsableFor:
		return nil, errNoKeys
	case key == nil:
		return nil, errors.New("unknown key")
	}
	return key, nil
}

// cached returns the keys and their age, which is beyond jwksUsableFor if there are none yet.
func (j *jwks) cached(kid string) (key any, age time.Duration) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.fetchedAt.IsZero() {
		return nil, jwksUsableFor + 1
	}
	for i := range j.keys {
		if k := &j.keys[i]; k.KeyID == kid || kid == "" && len(j.keys) == 1 {
			key = k.Key
			break
		}
	}
	return key, time.Since(j.fetchedAt)
}

// refresh fetches the keys, unless they have just been fetched. Requests that come meanwhile wait for that.
func (j *jwks) refresh(ctx context.Context, seen time.Duration) {
	select {
	case j.fetching <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-j.fetching }()
	if _, age := j.cached(""); age < seen || !j.limiter.Allow() {
		return
	}
	keys, err := j.fetch(context.WithoutCancel(ctx)) // a client that leaves must not make it fail for those that wait
	if err != nil {
		j.log.Warn().Err(err).Msg("JWKS cannot be fetched")
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.keys, j.fetchedAt = keys, time.Now()
}

func (j *jwks) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := j.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	return parseKeys(text)
}

// parseKeys drops keys that are not for signatures or not of a known kind. A set without any key is an error.
func parseKeys(text []byte) (keys []jose.JSONWebKey, err error) {
	var set struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	for _, one := range set.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(one) != nil {
			continue
		}
		if (k.Use == "" || k.Use == "sig") && usable(k.Key) == nil {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no usable key in it")
	}
	return keys, nil
}

// LoopbackName reports whether a host name is a name of the machine itself.
func LoopbackName(name string) bool {
	addr, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && addr.IsLoopback()
}
