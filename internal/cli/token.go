package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/internal/statedir"
	"trl/web/auth"
)

// NewToken returns trl token. Whoever may write the token file, usually the gateway's user, can use it. The gateway reads the file again by
// itself.
func NewToken() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make, list and revoke the gateway's tokens",
		Long: `Make, list and revoke the tokens of a gateway in its token file. The gateway need not run. A running gateway applies the file at
once, and disconnects the clients of a revoked token.

The file contains hashes: a token is shown when it is made, and never again.`,
	}
	var file, dir string
	f := cmd.PersistentFlags()
	f.StringVar(&file, "token-file", os.Getenv("TRL_TOKEN_FILE"), "the gateway's token `file` (TRL_TOKEN_FILE; default tokens in the state dir)")
	f.StringVar(&dir, "state-dir", os.Getenv("TRL_STATE_DIR"), "the gateway's state `directory` (TRL_STATE_DIR; default: the one that trl serve would use)")
	path := func() string {
		switch {
		case file != "" && (f.Changed("token-file") || !f.Changed("state-dir")): // a --state-dir on the command line takes precedence over TRL_TOKEN_FILE
			return file
		case dir != "":
			return filepath.Join(dir, statedir.TokensFile)
		}
		return filepath.Join(statedir.Default(), statedir.TokensFile)
	}
	cmd.AddCommand(newTokenCreate(path), newTokenList(path), newTokenRevoke(path))
	return cmd
}

func newTokenCreate(path func() string) *cobra.Command {
	var t auth.Token
	var role, expires string
	cmd := &cobra.Command{
		Use:   "create --subject NAME --role ROLE",
		Short: "Make a token and print it",
		Long:  `Make a token and print it on stdout, without any other text.`,
		Example: `  trl token create --subject ci --role user --expires 30d --max-sessions 4 --note 'the build server'
  (umask 077; trl token create --subject admin --role admin > ~/.local/state/trl/operator-token)   # for trl ls, trl run and so on, here`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.Subject == "" || role == "" {
				return cmdline.UsageErrorWithHint(errors.New("--subject and --role are needed"), "say whose token it is, and its role: admin, user or viewer")
			}
			t.Role = auth.Role(role)
			if expires != "" {
				life, err := lifetime(expires)
				if err != nil {
					return cmdline.UsageErrorWithHint(fmt.Errorf("--expires: %q", expires), "write 30d, 12h or 90m")
				}
				t.Expires = time.Now().Add(life)
			}
			id, secret, err := auth.AddToken(path(), t)
			if err != nil {
				return cmdline.WithHint(fmt.Errorf("token file: %w", err), "run this as the gateway's user; see `trl token --help`")
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), secret); err != nil { // nobody has seen this token, so it is useless
				_, e := auth.RevokeToken(path(), id)
				return errors.Join(fmt.Errorf("print the token: %w", err), e)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "trl: this is token %s, and it is shown only now\n", id)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&t.Subject, "subject", "", "whose it is; what it makes belongs to this `name`")
	f.StringVar(&role, "role", "", "`admin|user|viewer`")
	cmdline.MarkChoice(f, "role", "admin", "user", "viewer")
	f.StringVar(&expires, "expires", "", "how long it is good (30d, 12h); default: until it is revoked")
	f.IntVar(&t.MaxSessions, "max-sessions", 0, "live sessions of its subject at most; 0: the server's bound")
	f.IntVar(&t.MaxInFlight, "max-in-flight", 0, "requests under way at most, over all its connections; 0: no bound of its own")
	f.Float64Var(&t.Rate, "rate", 0, "requests a second at most, over all its connections; 0: no bound")
	f.StringVar(&t.Note, "note", "", "for whoever reads the list")
	return cmd
}

// lifetime parses a duration, which may be in days.
func lifetime(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 36500 {
			return 0, errors.New("not a number of days")
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d <= 0 {
		err = errors.New("not above zero")
	}
	return d, err
}

func newTokenList(path func() string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tokens, without the tokens themselves",
		Args:  cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tokens, err := auth.ListTokens(path())
			if err != nil {
				return cmdline.WithHint(fmt.Errorf("token file: %w", err), "run this as the gateway's user; see --token-file and --state-dir")
			}
			if asJSON {
				return cmdline.PrintJSON(cmd.OutOrStdout(), tokenRows(tokens))
			}
			var rows [][]string
			for _, t := range tokenRows(tokens) {
				rows = append(rows, []string{t.ID, t.Subject, t.Role, dashIfEmpty(t.Created), dashIfEmpty(t.Expires), dashIfEmpty(t.Limits), dashIfEmpty(t.Note)})
			}
			return cmdline.PrintTable(cmd.OutOrStdout(), []string{"ID", "SUBJECT", "ROLE", "CREATED", "EXPIRES", "LIMITS", "NOTE"}, rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// tokenRow is one token in a list.
type tokenRow struct {
	ID      string `json:"id"`
	Subject string `json:"subject"`
	Role    string `json:"role"`
	Created string `json:"created,omitzero"`
	Expires string `json:"expires,omitzero"`
	Limits  string `json:"limits,omitzero"`
	Note    string `json:"note,omitzero"`
}

func tokenRows(tokens []auth.Token) []tokenRow {
	rows := make([]tokenRow, 0, len(tokens))
	for _, t := range tokens {
		row := tokenRow{ID: t.ID, Subject: t.Subject, Role: string(t.Role), Note: t.Note}
		if !t.Created.IsZero() {
			row.Created = t.Created.UTC().Format(time.RFC3339)
		}
		if !t.Expires.IsZero() {
			row.Expires = t.Expires.UTC().Format(time.RFC3339)
			if !time.Now().Before(t.Expires) {
				row.Expires += " (over)"
			}
		}
		var limits []string
		for name, v := range map[string]float64{"max_in_flight": float64(t.MaxInFlight), "max_sessions": float64(t.MaxSessions), "rate": t.Rate} {
			if v > 0 {
				limits = append(limits, fmt.Sprintf("%s=%g", name, v))
			}
		}
		slices.Sort(limits)
		row.Limits = strings.Join(limits, " ")
		if t.Plain {
			row.Note = strings.TrimSpace("(in the clear) " + row.Note)
		}
		rows = append(rows, row)
	}
	return rows
}

func newTokenRevoke(path func() string) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID",
		Short: "Revoke a token and close its connections",
		Args:  cmdline.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := auth.RevokeToken(path(), args[0])
			switch {
			case errors.Is(err, auth.ErrNoToken):
				return cmdline.WithHint(fmt.Errorf("%w with the id %s", err, args[0]), "see `trl token list`")
			case err != nil:
				return cmdline.WithHint(fmt.Errorf("token file: %w", err), "run this as the gateway's user")
			}
			return nil
		},
	}
}
