package cli

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newShare() *cobra.Command {
	var (
		t       *target
		control bool
		q       protocol.ShareCreate
		life    time.Duration
	)
	cmd := &cobra.Command{
		Use: "share [SESSION|TERMINAL]", Short: "Make a link that lets others watch a session, or type", Args: cmdline.MaybeOneArg,
		Long: `Make a link to a session (id or name), or to one terminal (its id), for people without a token: to watch, or with --control to type
and run commands, too. The link is printed only once. It ends after --for, with its session, or by trl unshare.
` + defaultHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if of := sessionOf(args); kindOf(of) == terminalID {
				q.TermID = of
			} else {
				q.SessionRef = sessionRef(of)
			}
			if control {
				q.Mode = "control"
			}
			seconds := protocol.Seconds(life.Seconds())
			q.ExpiresIn = &seconds
			o, err := t.resolve()
			if err != nil {
				return err
			}
			var raw jsontext.Value
			if err := t.call(cmd.Context(), "share.create", q, &raw); err != nil {
				return hintSession(err, args)
			}
			if t.json {
				return cmdline.PrintJSON(cmd.OutOrStdout(), raw)
			}
			var made protocol.ShareCreated
			if err := json.Unmarshal(raw, &made); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), siteOf(o.URL)+made.Path) // over a Unix socket we know no address and print only the path
			return err
		},
	}
	t = connection(cmd)
	f := cmd.Flags()
	f.BoolVar(&control, "control", false, "guests may type and run commands")
	f.DurationVar(&life, "for", protocol.ShareTime*time.Second, "how long the link works, at most 720h")
	f.StringVar(&q.Name, "name", "", "a label for people")
	cmd.ValidArgsFunction = completeIDs(t, terminalID)
	return cmd
}

// siteOf returns the address for a browser. It accepts every address that the client accepts, also that of the WebSocket, or one with a
// slash at its end.
func siteOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return ""
	}
	switch u.Scheme {
	case "ws":
		u.Scheme = "http"
	case "wss":
		u.Scheme = "https"
	}
	return u.Scheme + "://" + u.Host + strings.TrimRight(strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1/ws"), "/")
}

func newShares() *cobra.Command {
	return aboutSession(&cobra.Command{
		Use: "shares [SESSION]", Short: "List a session's links", Long: "List the links of a session (id or name).",
	}, shareTable, "share.list")
}

func shareTable(all protocol.Shares) table {
	t := table{header: []string{"LINK", "NAME", "MODE", "TERMINAL", "GUESTS", "UNTIL"}}
	for _, s := range all.Shares {
		t.add(s.ShareID, dashIfEmpty(s.Name), s.Mode, dashIfEmpty(s.TermID), fmt.Sprint(s.Clients), s.ExpiresAt.Local().Format(time.DateTime))
	}
	return t
}

func newUnshare() *cobra.Command {
	var t *target
	cmd := &cobra.Command{
		Use: "unshare LINK", Short: "End a link and disconnect its guests", Args: cmdline.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.call(cmd.Context(), "share.revoke", protocol.ShareRef{ShareID: args[0]}, nil)
		},
	}
	t = connectionWithoutJSON(cmd)
	return cmd
}
