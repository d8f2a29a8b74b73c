package cli

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"trl/client/python"
	"trl/client/typescript"
	"trl/internal/cmdline"
)

// NewSDK returns the command that writes the client of another language.
func NewSDK() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sdk",
		Short: "Write the client library for another language",
		Long:  "Write the client library for another language into a directory, in the version of this program.",
	}
	cmd.AddCommand(
		newSDKCommand("typescript", "Write the npm package @trl/client", typescript.Files, "npm install %s"),
		newSDKCommand("python", "Write the Python package trl-client (import trl_client)", python.Files, "pip install '%s[websocket]'"),
	)
	return cmd
}

// newSDKCommand returns the command for one language. It prints how to install what it has written.
func newSDKCommand(language, short string, files fs.FS, install string) *cobra.Command {
	return &cobra.Command{
		Use: language + " DIR", Short: short, Args: cmdline.OneArg,
		Example: fmt.Sprintf("  trl sdk %s ./trl-client && "+install, language, "./trl-client"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := writeFiles(args[0], files); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), install+"\n", args[0])
			return err
		},
	}
}

// writeFiles writes all files below dir. Files of the same name are replaced, others stay.
func writeFiles(dir string, files fs.FS) error {
	return fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if d.IsDir() {
			return os.MkdirAll(path, 0o755)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if name == "package.json" {
			text = typescript.Manifest(text)
		}
		return os.WriteFile(path, text, 0o644)
	})
}
