package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"trl/internal/bench/figure"
	"trl/internal/bench/load"
	"trl/internal/cmdline"
	"trl/protocol"
)

func NewBench() *cobra.Command {
	var (
		t      *target
		b      load.Bench
		format string
	)
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure the gateway as a client sees it", Args: cmdline.NoArgs,
		Long: `Measure the gateway from here: commands, their rate over several sessions, streams, new sessions, keystrokes, and system.ping,
which is the round trip without work. The command makes its own sessions, and ends them.

Times have two modes if a sleeping core must wake up: the table shows both, and their shares.
With --format benchstat the lines are those of Go benchmarks: save two runs, and compare them with benchstat.`,
		Example: `  trl bench
  trl bench --url https://trl.example.org --token-file token --time 5s
  trl bench --format benchstat > before`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case format != "table" && format != "json" && format != "benchstat":
				return cmdline.UsageErrorWithHint(fmt.Errorf("--format %s", format), "want table, json or benchstat")
			case b.Time <= 0 || b.Time > time.Minute:
				return cmdline.UsageErrorWithHint(fmt.Errorf("--time %s", b.Time), "want up to a minute for each figure, such as 2s")
			case b.Sessions < 1 || b.MiB < 1 || b.MiB > 1<<10:
				return cmdline.UsageErrorWithHint(errors.New("nothing to measure"), "want --sessions of at least 1, and --mib from 1 to 1024")
			}
			if t.json {
				format = "json"
			}
			ctx, stop := context.WithCancelCause(cmd.Context())
			defer stop(nil)
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			go func() { // ends with the first signal, or the program
				sig := <-signals
				signal.Stop(signals) // a second signal ends us at once; the gateway then ends our sessions
				stop(cmdline.ExitBySignal(sig))
			}()
			return bench(ctx, cmd, t, &b, format)
		},
	}
	t = connection(cmd)
	f := cmd.Flags()
	f.StringVar(&b.Shell, "shell", "", "shell of the sessions (default: the server's)")
	f.IntVar(&b.Sessions, "sessions", 16, "sessions at work at the same time, for the rate")
	f.IntVar(&b.MiB, "mib", 16, "MiB of each stream")
	f.DurationVar(&b.Time, "time", 2*time.Second, "time for each figure")
	f.StringVar(&format, "format", "table", "`table|json|benchstat`")
	cmdline.MarkChoice(f, "format", "table", "json", "benchstat")
	return cmd
}

func bench(ctx context.Context, cmd *cobra.Command, t *target, b *load.Bench, format string) error {
	r := figure.Report{Machine: figure.ThisMachine()}
	c, err := t.dial(ctx, nil) // gives the errors their hints, and tells which gateway we measure
	if err != nil {
		return err
	}
	var caps protocol.Capabilities
	err = c.Call(ctx, "system.capabilities", nil, &caps)
	c.Close()
	if err != nil {
		return addHint(err)
	}
	r.Machine.Commit, r.Machine.Tier = caps.Version, caps.Isolation.Tier
	if b.Options, err = t.resolve(); err != nil {
		return err
	}
	out := bufio.NewWriter(cmd.OutOrStdout()) // keeps the first error until Flush
	if format == "table" {
		fmt.Fprintln(out, r.Machine)
		figure.Header(out)
		if err := out.Flush(); err != nil {
			return err
		}
	}
	b.Each = func(f figure.Figure) error {
		r.Figures = append(r.Figures, f)
		if format == "table" {
			f.Row(out)
		}
		return out.Flush()
	}
	if err := b.Run(ctx); err != nil {
		if code, ok := context.Cause(ctx).(cmdline.ExitCode); ok {
			return code
		}
		return addHint(err)
	}
	switch format {
	case "json":
		if err := cmdline.PrintJSON(out, r); err != nil {
			return err
		}
	case "benchstat":
		r.Benchstat(out)
	}
	return out.Flush()
}
