package dialect

import _ "embed"

// The marks of a terminal's shell are escape sequences around the prompt, the command line and the output. Each script prints them from the
// shell's own hooks and has the word @N@ in place of the terminal's nonce.
var (
	//go:embed boot/marks.bash
	MarksBash string
	//go:embed boot/marks.zsh
	MarksZsh string
	//go:embed boot/marks.fish
	MarksFish string
)
