package serve

import (
	"errors"
	"io/fs"
	"os"

	"github.com/rs/zerolog"

	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/statedir"
	"trl/web/auth"
)

// openAuth reads tokens and keys, and follows their changes until close. first: this process has just made the tokens.
func openAuth(s *config.Settings, state *statedir.Dir, log zerolog.Logger) (tokens *auth.TokenFile, first bool, close func(), err error) {
	close = func() {}
	if s.Web.AuthNone {
		return nil, false, close, nil
	}
	if s.TokenFile == "" {
		s.TokenFile = state.File(statedir.TokensFile)
	}
	s.Web.LoginsFile = state.File(statedir.LoginsFile)
	_, none := os.Stat(s.TokenFile)
	first = errors.Is(none, fs.ErrNotExist) || os.Getenv(config.TokensNewVar) != ""
	tokens, err = auth.OpenTokens(s.TokenFile, state.File(statedir.OperatorFile), log)
	if err != nil {
		if s.GatewayUser != nil && errors.Is(err, fs.ErrPermission) {
			return nil, first, close, cmdline.WithHint(err, "the gateway runs as %s, which must be able to read the file and its directory", s.GatewayUser.Text)
		}
		return nil, first, close, cmdline.WithHint(err, "each line is `TOKEN SUBJECT ROLE` (see `trl token --help`), and only you may read the file (chmod 600)")
	}
	s.Web.Tokens, s.Pool.MaxOfPrincipal = tokens, tokens.MaxSessions
	close = func() { tokens.Close() }
	if j := s.Credentials.JWT; j.KeyFile != "" || j.JWKS != "" {
		keys, err := auth.OpenJWT(j, log)
		if err != nil {
			close()
			return nil, first, func() {}, cmdline.WithHint(err, config.JWTHint)
		}
		s.Web.JWT, close = keys, func() { tokens.Close(); keys.Close() }
	}
	return tokens, first, close, nil
}
