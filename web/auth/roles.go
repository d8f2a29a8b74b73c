package auth

import (
	"cmp"
	"slices"
)

// RoleRule says which role an identity provider's claims give.
type RoleRule struct {
	Claim       string          // the claim, a string or a list of strings, of an ID token or a JWT
	Map         map[string]Role // the role of each value; a value that is not here is a role itself
	DefaultRole Role            // the role if the claim names none; "": then the principal is refused
}

// role returns the role; of several, the one that may do most.
func (rule RoleRule) role(claims map[string]any) (best Role, ok bool) {
	var values []string
	switch v := claims[cmp.Or(rule.Claim, "trl_role")].(type) {
	case string:
		values = []string{v}
	case []any:
		for _, one := range v {
			if text, ok := one.(string); ok {
				values = append(values, text)
			}
		}
	}
	rank := []Role{Viewer, User, Admin}
	for _, v := range values {
		role, mapped := rule.Map[v]
		if !mapped {
			role = Role(v)
		}
		if slices.Index(rank, role) > slices.Index(rank, best) {
			best = role
		}
	}
	best = cmp.Or(best, rule.DefaultRole)
	return best, best != ""
}

// principal returns the principal of verified claims of an identity provider. The issuer is part of the subject: otherwise a person who may choose a
// name there could choose that of a token's subject, or of another provider's. The same person by JWT and by OIDC is one principal.
func (rule RoleRule) principal(issuer, subject string, claims map[string]any) (Principal, bool) {
	role, ok := rule.role(claims)
	k := Token{Subject: issuer + "#" + subject, Role: role}
	if !ok || subject == "" || len(subject) > 255 || k.check() != nil { // 255: OpenID Connect Core, section 2
		return Principal{}, false
	}
	return Principal{Subject: k.Subject, Role: role}, true
}
