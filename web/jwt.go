package web

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rs/zerolog"
)

// JWTConfig says which JWTs are taken. All of it but Role is needed, and one of KeyFile and JWKS.
type JWTConfig struct {
	KeyFile    string // a public key or certificate, PEM; with HS algorithms the secret itself
	JWKS       string // or the URL of a set of public keys
	Algorithms []string
	Issuer     string
	Audience   string
	Role       RoleRule
}

// JWTAlgorithms are those that may be asked for. "none" is not among them.
var JWTAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"}

const (
	// jwtLeeway is how far the clocks of issuer and gateway may be apart.
	jwtLeeway = 5 * time.Second
	// maxJWT is far beyond what fits into a header of ours besides.
	maxJWT = 16 << 10
	// minSecret is the size of the smallest hash that HS algorithms use (RFC 7518 §3.2).
	minSecret  = 32
	minRSABits = 2048
)

// JWT judges JSON Web Tokens of one issuer. Which algorithms count is the operator's to say, never the token's: a public key is no HMAC
// secret, whatever a header says.
type JWT struct {
	c      JWTConfig
	parser *jwt.Parser
	jwks   *jwks // nil: the key is a file's
	key    atomic.Pointer[any]
	reload *reloader // nil with jwks
}

// OpenJWT reads the key, and follows its file until Close. Keys of a URL are fetched when the first token comes.
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
	j := &JWT{c: c, parser: jwt.NewParser(jwt.WithValidMethods(c.Algorithms), jwt.WithIssuer(c.Issuer), jwt.WithAudience(c.Audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(jwtLeeway), jwt.WithStrictDecoding())}
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
	j.reload, err = watchFiles(log, load, c.KeyFile)
	return j, err
}

// Close stops following the key's file.
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
	case secret && block != nil: // the confusion that lets everybody who has the public key sign
		return fmt.Errorf("JWT key %s: PEM is no secret for HS algorithms", j.c.KeyFile)
	case secret && len(text) < minSecret:
		return fmt.Errorf("JWT key %s: a secret has at least %d bytes", j.c.KeyFile, minSecret)
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

// usable refuses keys that are no public keys, or weak ones.
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
func (j *JWT) verify(ctx context.Context, text string) (*Grant, authOutcome) {
	if len(text) > maxJWT {
		return nil, malformedCredential
	}
	claims := jwt.MapClaims{}
	_, err := j.parser.ParseWithClaims(text, claims, func(t *jwt.Token) (any, error) {
		if _, critical := t.Header["crit"]; critical { // extensions that must be understood (RFC 7515 §4.1.11)
			return nil, jwt.ErrTokenUnverifiable
		}
		if j.jwks == nil {
			return *j.key.Load(), nil
		}
		kid, _ := t.Header["kid"].(string)
		return j.jwks.find(ctx, kid)
	})
	switch {
	case errors.Is(err, errNoKeys):
		return nil, unavailable
	case errors.Is(err, jwt.ErrTokenMalformed):
		return nil, malformedCredential
	case errors.Is(err, jwt.ErrTokenExpired):
		return nil, expired
	case err != nil:
		return nil, unknown
	}
	subject, _ := claims.GetSubject()
	until, err := claims.GetExpirationTime()
	who, ok := j.c.Role.principal(j.c.Issuer, subject, claims)
	if err != nil || until == nil || !ok {
		return nil, unknown
	}
	return newGrant(who, Terms{Expires: until.Add(jwtLeeway)}), accepted
}
