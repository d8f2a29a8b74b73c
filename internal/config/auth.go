package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"trl/internal/cmdline"
	"trl/web/auth"
)

// authSettings are the settings of authentication besides --auth and --token-file.
type authSettings struct {
	JWT        auth.JWTConfig
	oidc       auth.OIDCConfig
	certs      auth.ClientCertsConfig
	clientAuth string // --tls-client-auth

	roleClaim, roleDefault string
	roleMap, certRoles     []string // VALUE=ROLE
}

func (s *Settings) defineAuth(f *pflag.FlagSet) {
	a := &s.Credentials
	f.StringVar(&a.JWT.KeyFile, "jwt-key", "", "accept JWTs that are signed with this key: a PEM `file` with a public key or certificate, or the secret of HS algorithms")
	f.StringVar(&a.JWT.JWKS, "jwt-jwks", "", "accept JWTs that are signed with the keys at this `URL` (https)")
	f.StringSliceVar(&a.JWT.Algorithms, "jwt-alg", []string{"RS256", "ES256", "EdDSA"}, "accepted signature algorithms of JWTs")
	f.StringVar(&a.JWT.Issuer, "jwt-issuer", "", "required iss of a JWT")
	f.StringVar(&a.JWT.Audience, "jwt-audience", "", "required aud of a JWT")
	f.StringVar(&a.oidc.Issuer, "oidc-issuer", "", "let people log in to the page with this OpenID provider (`URL`)")
	f.StringVar(&a.oidc.ClientID, "oidc-client-id", "", "our client id at the OpenID provider")
	f.StringVar(&a.oidc.SecretFile, "oidc-client-secret-file", "", "`file` with our client secret at the OpenID provider; without it: only PKCE")
	f.StringVar(&a.oidc.RedirectURL, "oidc-redirect-url", "", "where the OpenID provider sends people back to: `https://HOST/login/oidc/callback`")
	f.StringSliceVar(&a.oidc.Scopes, "oidc-scope", nil, "another scope to request in addition to openid (repeatable)")
	f.DurationVar(&a.oidc.SessionLasts, "oidc-session", 12*time.Hour, "how long a login with the OpenID provider lasts")
	f.StringVar(&a.roleClaim, "role-claim", "trl_role", "claim of a JWT or ID token with the role, or with a value in --role-map")
	f.StringSliceVar(&a.roleMap, "role-map", nil, "`VALUE=ROLE`: the role for a value of the role claim (repeatable)")
	f.StringVar(&a.roleDefault, "role-default", "user", "role of a JWT, ID token or client certificate that names none: `admin|user|viewer|none`; none refuses it")
	f.StringVar(&a.certs.CAFile, "tls-client-ca", "", "accept client certificates of the CAs in this PEM `file`")
	f.StringVar(&a.clientAuth, "tls-client-auth", "optional", "client certificates: `optional|require`")
	f.StringVar(&a.certs.Name, "tls-client-name", "cn", "part of the client certificate that is the subject: `cn|dns|email|uri`")
	f.StringSliceVar(&a.certRoles, "tls-client-role", nil, "`NAME=ROLE`: role of the client certificate with this name (repeatable)")

	cmdline.MarkChoices(f, "jwt-alg", auth.JWTAlgorithms...)
	cmdline.MarkChoice(f, "tls-client-auth", "optional", "require")
	cmdline.MarkChoice(f, "tls-client-name", auth.ClientCertNames...)
	cmdline.MarkChoice(f, "role-default", "admin", "user", "viewer", "none")
}

const JWTHint = "see --jwt-key, --jwt-jwks, --jwt-alg, --jwt-issuer and --jwt-audience"

// checkAuth refuses settings that cannot work, and completes the configuration of web.
func (s *Settings) checkAuth(fault faultFunc) (err error) {
	a := &s.Credentials
	if s.Auth == "none" {
		for _, flag := range []string{"jwt-key", "jwt-jwks", "oidc-issuer", "tls-client-ca"} {
			if s.IsSet(flag) {
				return fault(flag, "needs authentication", "another --auth than none")
			}
		}
	}
	rule := auth.RoleRule{Claim: a.roleClaim}
	if a.roleDefault != "none" {
		rule.DefaultRole = auth.Role(a.roleDefault)
	}
	if rule.Map, err = roles(a.roleMap); err != nil {
		return fault("role-map", err, "VALUE=admin, VALUE=user or VALUE=viewer")
	}
	if a.certs.Roles, err = roles(a.certRoles); err != nil {
		return fault("tls-client-role", err, "NAME=admin, NAME=user or NAME=viewer")
	}
	a.JWT.Role, a.oidc.Role, a.certs.DefaultRole, a.certs.Require = rule, rule, rule.DefaultRole, a.clientAuth == "require"
	if a.oidc.Issuer != "" {
		if err := a.oidc.Check(); err != nil {
			return cmdline.WithHint(err, "see --oidc-issuer, --oidc-client-id and --oidc-redirect-url")
		}
		if a.oidc.SessionLasts < time.Minute {
			return fault("oidc-session", a.oidc.SessionLasts, "at least 1m")
		}
		s.Web.OIDC = &a.oidc
	}
	if a.certs.CAFile != "" {
		if !s.Web.TLS() {
			return fault("tls-client-ca", a.certs.CAFile, "--tls-cert and --tls-key, or --acme-domain, too: client certificates need TLS")
		}
		s.Web.ClientCerts = &a.certs
	}
	return nil
}

func roles(pairs []string) (map[string]auth.Role, error) {
	all := map[string]auth.Role{}
	for _, pair := range pairs {
		at := strings.LastIndexByte(pair, '=')
		if at < 1 || !slices.Contains([]string{"admin", "user", "viewer"}, pair[at+1:]) {
			return nil, fmt.Errorf("%q", pair)
		}
		all[pair[:at]] = auth.Role(pair[at+1:])
	}
	return all, nil
}
