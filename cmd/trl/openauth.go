package main

import (
	"errors"
	"io/fs"
	"os"

	"github.com/rs/zerolog"

	"trl/web"
)

// openAuth reads tokens and keys, which it follows until close. first: the tokens were made just now.
func openAuth(s *settings, state *stateDir, log zerolog.Logger) (tokens *web.TokenFile, first bool, close func(), err error) {
	close = func() {}
	if s.web.AuthNone {
		return nil, false, close, nil
	}
	if s.tokenFile == "" {
		s.tokenFile = state.file(tokensFile)
	}
	s.web.LoginsFile = state.file(loginsFile)
	_, none := os.Stat(s.tokenFile)
	first = errors.Is(none, fs.ErrNotExist) || os.Getenv(tokensNewVar) != ""
	tokens, err = web.OpenTokens(s.tokenFile, state.file(operatorFile), log)
	if err != nil {
		if s.gatewayUser != nil && errors.Is(err, fs.ErrPermission) {
			return nil, first, close, errorWithHint(err, "%s, as whom the gateway runs, must be able to read it and its directory", s.gatewayUser.Text)
		}
		return nil, first, close, errorWithHint(err, "each line is `TOKEN SUBJECT ROLE` (see `trl token --help`), and only you may read the file (chmod 600)")
	}
	s.web.Tokens, s.pool.MaxOfPrincipal = tokens, tokens.MaxSessions
	close = func() { tokens.Close() }
	if j := s.credentials.jwt; j.KeyFile != "" || j.JWKS != "" {
		keys, err := web.OpenJWT(j, log)
		if err != nil {
			close()
			return nil, first, func() {}, errorWithHint(err, hintJWT)
		}
		s.web.JWT, close = keys, func() { tokens.Close(); keys.Close() }
	}
	return tokens, first, close, nil
}
