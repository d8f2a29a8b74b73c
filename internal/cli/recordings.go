package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/client"
	"trl/internal/cmdline"
	"trl/protocol"
)

func newRecordings() *cobra.Command {
	var (
		t *target
		q protocol.RecordingList
	)
	cmd := &cobra.Command{
		Use:   "recordings [SESSION]",
		Short: "List recordings, download and remove them",
		Long: `List your recordings, or those of a session (its name while it lives, or its id).

trl records terminals and commands if the server's policy says so (trl serve --record), if the session was created with it, and
with trl term --record and trl run --record. It records output, never input.`,
		Example: `  trl recordings
  trl recordings get RECORDING -o work.cast
  trl play RECORDING`,
		Args: cmdline.MaybeOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := t.dial(ctx, nil)
			if err != nil {
				return err
			}
			defer c.Close()
			if len(args) == 1 {
				q.SessionID = args[0]
				if ref := sessionRef(args[0]); ref.SessionID == "" {
					var info protocol.SessionInfo
					if err := c.Call(ctx, "session.info", ref, &info); err != nil {
						return addHint(err)
					}
					q.SessionID = info.SessionID
				}
			}
			var raw jsontext.Value
			if err := c.Call(ctx, "recording.list", q, &raw); err != nil {
				return addHint(err)
			}
			return printAnswer(cmd, t, raw, recordingTable)
		},
	}
	t = connection(cmd)
	cmd.Flags().BoolVar(&q.All, "all", false, "everybody's (admins)")
	cmd.ValidArgsFunction = completeSessions(t)
	cmd.AddCommand(newRecordingGet(), newRecordingRemove())
	return cmd
}

func recordingTable(all protocol.Recordings) table {
	t := table{header: []string{"RECORDING", "SESSION", "OF", "STATE", "AGE", "LENGTH", "SIZE", "COMMAND"}}
	for _, r := range all.Recordings {
		what := "terminal"
		if r.ExecID != "" {
			what = "command"
		}
		state := r.State
		if r.Reason != "" && r.Reason != "exit" {
			state += ": " + r.Reason
		}
		length := (time.Duration(r.DurationMS) * time.Millisecond).Round(100 * time.Millisecond)
		t.add(r.RecordingID, dashIfEmpty(r.Session), what, state, formatAge(r.StartedAt), length.String(), formatBytes(r.SizeBytes), dashIfEmpty(cmdline.Shorten(r.Command, 40)))
	}
	return t
}

// formatBytes formats a size for people.
func formatBytes(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%dB", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1fK", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1fM", float64(n)/(1<<20))
}

func newRecordingGet() *cobra.Command {
	var (
		t         *target
		format, o string
	)
	cmd := &cobra.Command{
		Use:   "get RECORDING",
		Short: "Download a recording",
		Long:  `Download a recording, an asciicast, to stdout or into a file. While the recording is in progress, download what exists so far.`,
		Args:  cmdline.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "v3" && format != "v2" {
				return cmdline.UsageErrorWithHint(fmt.Errorf("--format %q", format), "want v3 or v2")
			}
			if _, err := os.Lstat(o); o != "" && err == nil {
				return cmdline.WithHint(fmt.Errorf("%s exists already", o), "choose another -o")
			}
			from, err := t.download(cmd, args[0], format == "v2")
			if err != nil {
				return err
			}
			defer from.Close()
			if o == "" {
				_, err = io.Copy(cmd.OutOrStdout(), from)
				return err
			}
			return saveFile(from, o)
		},
	}
	t = connectionWithoutJSON(cmd)
	cmd.Flags().StringVar(&format, "format", "v3", "asciicast `v3|v2`")
	cmdline.MarkChoice(cmd.Flags(), "format", "v3", "v2")
	cmd.Flags().StringVarP(&o, "output", "o", "", "write it into this `file`, which must not be there")
	return cmd
}

// saveFile writes the whole file or leaves none.
func saveFile(from io.Reader, path string) error {
	to, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return cmdline.WithHint(err, "choose another -o")
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err == nil {
		err = os.Rename(to.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(to.Name()))
	}
	return err
}

// download opens a recording that the gateway keeps.
func (t *target) download(cmd *cobra.Command, id string, v2 bool) (io.ReadCloser, error) {
	c, err := t.dial(cmd.Context(), nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	from, err := c.Recording(cmd.Context(), id, v2)
	if errors.Is(err, client.ErrNoHTTP) {
		return nil, cmdline.WithHint(err, "use --url and --token")
	}
	return from, addHint(err)
}

func newRecordingRemove() *cobra.Command {
	var t *target
	cmd := &cobra.Command{
		Use:   "rm RECORDING",
		Short: "Remove a recording",
		Long:  `Remove a recording. A recording in progress ends; its terminal or command goes on. Only an admin may remove a recording that the server's policy demands.`,
		Args:  cmdline.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.call(cmd.Context(), "recording.delete", protocol.RecordingRef{RecordingID: args[0]}, nil)
		},
	}
	t = connectionWithoutJSON(cmd)
	return cmd
}
