package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"trl/web/filewatch"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/rs/zerolog"
)

// JWTConfig says which JWTs are accepted. All of it but Role is required, and one of KeyFile and JWKS.
type JWTConfig struct {
	KeyFile    string // a public key or certificate, PEM; with HS algorithms the secret itself
	JWKS       string // or the URL of a set of public keys
	Algorithms []string
	Issuer     string
	Audience   string
	Role       RoleRule
}

// JWTAlgorithms are the algorithms that an operator may choose. "none" is not among them.
var JWTAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"}

const (
	// jwtLeeway is how much the clocks of issuer and gateway may differ.
	jwtLeeway = 5 * time.Second
	// maxJWT is the largest JWT; it is far above what fits into a header with everything else.
	maxJWT = 16 << 10
	// minSecret is the size of the smallest hash of the HS algorithms (RFC 7518, section 3.2).
	minSecret  = 32
	minRSABits = 2048
	// paddedSecret is the size below which go-jose refuses a secret for HS512.
	paddedSecret = 64
)

// JWT checks JSON Web Tokens of one issuer. The operator chooses the algorithms, never the token: a public key must not count as an HMAC secret
// because a header says so.
type JWT struct {
	c          JWTConfig
	algorithms []jose.SignatureAlgorithm
	jwks       *jwks // nil: the key comes from a file
	key        atomic.Pointer[any]
	reload     *filewatch.Follower // nil with jwks
}

// OpenJWT reads the key and watches its file until Close. The keys of a URL are fetched when the first token comes.
func OpenJWT(c JWTConfig, log zerolog.Logger) (*JWT, error) {
	if len(c.Algorithms) == 0 {
		c.Algorithms = []string{"RS256", "ES256", "EdDSA"}
	}
	secret := 0
	for _, alg := range c.Algorithms {
		if !slices.Contains(JWTAlgorithms, alg) {
			return nil, fmt.Errorf("JWT algorithm %q is none of %s", alg, strings.Join(JWTAlgorithms, ", "))
		}
		if strings.HasPrefix(alg, "HS") {
			secret++
		}
	}
	switch {
	case secret > 0 && secret < len(c.Algorithms):
		return nil, errors.New("JWT algorithms: HS ones and others exclude each other")
	case secret > 0 && c.JWKS != "":
		return nil, errors.New("JWT algorithms: a set of public keys is not for HS ones")
	case (c.KeyFile == "") == (c.JWKS == ""):
		return nil, errors.New("JWT: one of a key file and a JWKS URL is needed")
	case c.Issuer == "" || c.Audience == "":
		return nil, errors.New("JWT: issuer and audience are needed")
	}
	j := &JWT{c: c}
	for _, alg := range c.Algorithms {
		j.algorithms = append(j.algorithms, jose.SignatureAlgorithm(alg))
	}
	if c.JWKS != "" {
		var err error
		j.jwks, err = newJWKS(c.JWKS, log)
		return j, err
	}
	load := func() error { return j.load(secret > 0) }
	if err := load(); err != nil {
		return nil, err
	}
	var err error
	j.reload, err = filewatch.Follow(log, load, c.KeyFile)
	return j, err
}

// Close stops watching the key's file.
func (j *JWT) Close() error {
	if j.reload == nil {
		return nil
	}
	return j.reload.Close()
}

func (j *JWT) load(secret bool) error {
	text, err := os.ReadFile(j.c.KeyFile)
	if err != nil {
		return fmt.Errorf("JWT key: %w", err)
	}
	var key any = text
	block, _ := pem.Decode(text)
	switch {
	case secret && block != nil: // otherwise everybody who has the public key could sign
		return fmt.Errorf("JWT key %s: PEM is no secret for HS algorithms", j.c.KeyFile)
	case secret && len(text) < minSecret:
		return fmt.Errorf("JWT key %s: a secret has at least %d bytes", j.c.KeyFile, minSecret)
	case secret && len(text) < paddedSecret: // HMAC itself pads its key with zeros (RFC 2104, section 2), so this is the same key
		key = append(text, make([]byte, paddedSecret-len(text))...)
	case !secret:
		if block == nil {
			return fmt.Errorf("JWT key %s: no PEM", j.c.KeyFile)
		}
		if key, err = publicKey(block); err != nil {
			return fmt.Errorf("JWT key %s: %w", j.c.KeyFile, err)
		}
	}
	j.key.Store(&key)
	return nil
}

func publicKey(block *pem.Block) (any, error) {
	switch block.Type {
	case "PUBLIC KEY":
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		return key, usable(key)
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return cert.PublicKey, usable(cert.PublicKey)
	}
	return nil, fmt.Errorf("%s is not PUBLIC KEY or CERTIFICATE", block.Type)
}

// usable refuses weak keys, and keys that are not public keys.
func usable(key any) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < minRSABits {
			return fmt.Errorf("an RSA key of %d bits", key.N.BitLen())
		}
		return nil
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return nil
	}
	return fmt.Errorf("a key of type %T", key)
}

// verify checks everything about a JWT; the principal is its issuer and subject.
func (j *JWT) verify(ctx context.Context, text string) (*Grant, Outcome) {
	if len(text) > maxJWT || !isCanonical(text) {
		return nil, malformedCredential
	}
	token, err := jwt.ParseSigned(text, j.algorithms)
	if _, other := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); other {
		return nil, Unknown
	}
	claims := map[string]any{}
	if err != nil || token.UnsafeClaimsWithoutVerification(&claims) != nil {
		return nil, malformedCredential
	}
	header := token.Headers[0]
	if _, critical := header.ExtraHeaders["crit"]; critical { // extensions that the server would have to understand (RFC 7515, section 4.1.11)
		return nil, Unknown
	}
	var key any
	if j.jwks == nil {
		key = *j.key.Load()
	} else if key, err = j.jwks.find(ctx, header.KeyID); errors.Is(err, errNoKeys) {
		return nil, unavailable
	} else if err != nil {
		return nil, Unknown
	}
	var known struct {
		jwt.Claims
		ID any `json:"jti"` // not used, so it may have any type
	}
	if token.Claims(key, &known) != nil || known.Expiry == nil { // the signature, and the types of the claims
		return nil, Unknown
	}
	now, until := time.Now(), known.Expiry.Time().Add(jwtLeeway)
	if !now.Before(until) {
		return nil, expired
	}
	if known.ValidateWithLeeway(jwt.Expected{Issuer: j.c.Issuer, AnyAudience: jwt.Audience{j.c.Audience}, Time: now}, jwtLeeway) != nil {
		return nil, Unknown
	}
	who, ok := j.c.Role.principal(j.c.Issuer, known.Subject, claims)
	if !ok {
		return nil, Unknown
	}
	return newGrant(who, Terms{Expires: until}), Accepted
}

// isCanonical reports whether each part of a JWT is base64url in the only form that encodes its bytes. go-jose accepts line breaks and stray bits
// at the end, and checks the signature over the bytes encoded again: one token would have many spellings.
func isCanonical(text string) bool {
	for part := range strings.SplitSeq(text, ".") {
		p, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil || base64.RawURLEncoding.EncodeToString(p) != part {
			return false
		}
	}
	return true
}
