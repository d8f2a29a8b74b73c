package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/web/audit"
)

func NewAudit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Check and read audit logs (trl serve --audit-log)",
		Long: `Check and read the audit logs of trl serve --audit-log FILE.

Every line contains a hash of the previous one, also across rotated files (FILE.000000001234). The chain alone cannot show that
its end was cut off, or that everything from some line on was written anew. Keep heads on another machine for that: trl audit head
prints one, and the gateway's log has one every hour.`,
	}
	cmd.AddCommand(newAuditVerify(), newAuditHead(), newAuditHash())
	return cmd
}

func newAuditVerify() *cobra.Command {
	var heads []string
	cmd := &cobra.Command{
		Use: "verify FILE…", Short: "Say OK, or name the first line that was changed",
		Long: `Say OK, or name the first line that was changed, removed, inserted, or is out of order. A single FILE is checked together with its
rotated files. With --head, also check that the lines of these heads are still there.`,
		Example: "  trl audit verify /var/log/trl/audit.log\n  trl audit verify --head 1234:5f1c… /var/log/trl/audit.log",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmdline.WithHint(errors.New("no file"), "usage: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := verify(args, heads)
			if err != nil {
				var fault *audit.Fault
				if errors.As(err, &fault) {
					return cmdline.WithHint(err, "the %d lines before it are unchanged", r.Lines)
				}
				return err
			}
			out := cmd.OutOrStdout()
			if r.Lines == 0 {
				_, err = fmt.Fprintln(out, "OK, no lines")
				return err
			}
			_, err = fmt.Fprintf(out, "OK, %d lines, number %d to %d, head %s\n", r.Lines, r.First, r.Last, r.Head)
			say := func(n int, text string, args ...any) {
				if n > 0 && err == nil {
					_, err = fmt.Fprintf(out, text+"\n", args...)
				}
			}
			say(int(r.First)-1, "what was before number %d is not here", r.First)
			say(int(r.Lost), "%d entries could not be written, where it says audit.lost", r.Lost)
			say(r.Torn, "%d times it went on after a crash in the middle of a line, where it says audit.torn", r.Torn)
			say(r.Cut, "%d bytes of a line that is not finished, at the end", r.Cut)
			return err
		},
	}
	cmd.Flags().StringSliceVar(&heads, "head", nil, "a `NUMBER:HASH` that was kept elsewhere (repeatable)")
	return cmd
}

// verify checks one path together with the rotated files beside it. It starts again if a rotation happened meanwhile.
func verify(paths, heads []string) (r audit.Report, err error) {
	if len(paths) > 1 {
		return audit.Verify(paths, heads...)
	}
	files, err := audit.Files(paths[0])
	for err == nil {
		var fault error
		r, fault = audit.Verify(slices.Clone(files), heads...)
		before := files
		if files, err = audit.Files(paths[0]); err == nil && (fault == nil || slices.Equal(before, files)) {
			return r, fault
		}
	}
	return r, err
}

func newAuditHead() *cobra.Command {
	return &cobra.Command{
		Use: "head FILE", Short: "Print the number and the hash of the last line, to keep on another machine", Args: cmdline.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			head, err := audit.ReadHead(args[0])
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), head)
			}
			return err
		},
	}
}

func newAuditHash() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use: "hash --key FILE COMMAND", Short: "Print the hash of a command with this key, to search for it in the log", Args: cmdline.OneArg,
		Example: "  grep -c \"$(trl audit hash --key /var/log/trl/audit.log.key 'make test')\" /var/log/trl/audit.log",
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := audit.ReadHashKey(key)
			if err != nil {
				return cmdline.WithHint(err, "the key is next to the log: --key FILE.key")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), k.Hash(args[0]))
			return err
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "the log's key `file`")
	return cmd
}
