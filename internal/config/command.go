package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/web/auth"
)

func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Check and show the gateway's settings",
		Long: `Check and show the gateway's settings.

Settings come from flags of trl serve, TRL_… variables in the environment, and a config file, in this order. Give the same ones here:
the result applies to trl serve with them, as the same user, in the same directory.`,
	}
	cmd.AddCommand(newConfigCheck(), newConfigPrint(), newConfigSchema(), newConfigReference())
	return cmd
}

func newConfigCheck() *cobra.Command {
	var s Settings
	cmd := &cobra.Command{
		Use: "check [FILE]", Short: "Check whether trl serve would accept a config file, and list every mistake with its line",
		Long: `Check whether trl serve would accept a config file (FILE or --config), and list every mistake with its line.
Nothing is started or changed. The exit code is 1 if there is a mistake. A TRL_… variable that is not a setting is listed, but is not a mistake.`,
		Example: `  trl config check /etc/trl.yaml`,
		Args:    cmdline.MaybeOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if err := cmd.Flags().Set("config", args[0]); err != nil {
					return err
				}
			}
			for _, err := range UnknownVariables() { // serve starts nevertheless
				cmdline.PrintError(cmd.ErrOrStderr(), err)
			}
			var all cmdline.Faults
			all.Add(s.load(cmd.Flags()))
			if s.Web.TLSCert != "" && s.Web.TLSKey != "" {
				if _, err := tls.LoadX509KeyPair(s.Web.TLSCert, s.Web.TLSKey); err != nil {
					all.Add(cmdline.WithHint(fmt.Errorf("%s: %w", s.Source("tls-cert"), err), "check tls_cert and tls_key"))
				}
			}
			if j := s.Credentials.JWT; j.KeyFile != "" || j.JWKS != "" {
				if keys, err := auth.OpenJWT(j, zerolog.Nop()); err != nil {
					all.Add(cmdline.WithHint(err, JWTHint))
				} else {
					keys.Close()
				}
			}
			if s.File == "" && len(all) == 0 {
				return cmdline.UsageErrorWithHint(errors.New("no config file given"), "usage: trl config check FILE")
			}
			if err := all.Err(); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", s.File)
			return err
		},
	}
	s.Define(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}

func newConfigPrint() *cobra.Command {
	var s Settings
	var format string
	cmd := &cobra.Command{
		Use: "print", Short: "Print every setting that trl serve would use, and its source",
		Long: `Print every setting that trl serve would use, and its source: a flag, the environment, a line of the config file, or the default.
The output is itself a config file.`,
		Example: `  trl config print --config /etc/trl.yaml
  trl config print --format json`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "yaml" && format != "json" {
				return cmdline.UsageErrorWithHint(fmt.Errorf("--format: %q", format), "want yaml or json")
			}
			if err := s.load(cmd.Flags()); err != nil {
				return err
			}
			if format == "json" {
				all := map[string]any{}
				for _, g := range allSettings() {
					all[keyName(g.Name)] = map[string]any{"value": fileValue(s.flags.Lookup(g.Name)), "source": s.origin(g.Name)}
				}
				return cmdline.PrintJSON(cmd.OutOrStdout(), all)
			}
			return s.print(cmd.OutOrStdout())
		},
	}
	s.Define(cmd.Flags())
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&format, "format", "yaml", "`yaml|json`")
	cmdline.MarkChoice(cmd.Flags(), "format", "yaml", "json")
	return cmd
}

func newConfigSchema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of the config file, for editors", Args: cmdline.NoArgs,
		Long: `Print the JSON Schema of the config file. Editors with a YAML language server use it for completion and checks if the file begins with

  # yaml-language-server: $schema=trl.schema.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), configSchema())
			return err
		},
	}
}

// newConfigReference prints the table in docs/configuration.md.
func newConfigReference() *cobra.Command {
	return &cobra.Command{
		Use: "reference", Hidden: true, Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), configReference())
			return err
		},
	}
}
