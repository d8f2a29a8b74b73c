// Package dialect has the differences between bash, dash, ash and zsh, as text: how each is started, the scripts that it reads, and the
// lines that it is sent. Its functions are pure.
package dialect

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Dialect has the differences between the shells: how a shell is started, which text it reads first, how a busy shell is brought back to
// its script channel, and how its state is written and read.
type Dialect struct {
	Name string
	// Args follow argv[0]. bash's last argument is the script channel, descriptor 3. As a script argument it causes no prompts, and the
	// shell moves it where the user's `exec 3>&-` does not reach it. The shells are interactive, so that errors return to the channel. ash
	// has -I (ignoreeof), because it takes a SIGINT during a read from stdin for the end of stdin.
	Args []string
	Boot string
	// PacketChannel: the channel is a packet pipe, because these shells read in blocks and drop the whole block on an error.
	PacketChannel bool
	// Stdin is the stdin of commands without input, if the shell's own stdin is the script channel. zsh does not survive SIGINT if the
	// channel is a script argument; dash and ash show such an argument in $0 and in every message.
	Stdin       string
	AbortSignal syscall.Signal
	// SetsTrap finds texts that may set a trap for the abort signal; the shell would run that trap and then go on with its list.
	// SnapshotHasTrap finds such a trap in a snapshot; nil for bash, whose snapshot always has ours.
	SetsTrap, SnapshotHasTrap *regexp.Regexp

	Source     string // reads a script, whatever the user has redefined
	ReportCall string // the call that reports, whatever the user has redefined
	ResendCall string // the call that repeats a dropped report
	LastReport string // the line that repeats the last report to the question %s and keeps $?
	// KeepStatus follows each of these calls if they return the status of the last command, so that neither errexit nor ERR sees it.
	KeepStatus string
	// Quoted: a command's text is given as `\eval 'TEXT'`, which dot reads. Otherwise eval reads the text from its file.
	Quoted bool
	// InitVars sets our variables in a shell that has read a snapshot, which has their values from another shell.
	InitVars string
	// HidesTraps: once a session may have traps that would run for our own lines, our lines disable them.
	HidesTraps bool
	// ListsFunctions: a snapshot has the functions, and a fresh shell can read it unchanged.
	ListsFunctions bool
	// SnapshotCost is about the time that a snapshot of a plain shell takes.
	SnapshotCost time.Duration
}

var (
	//go:embed boot/bash.sh
	bootBash string
	//go:embed boot/posix.sh
	bootPOSIX string
	//go:embed boot/zsh.sh
	bootZsh string
)

// dashDot uses `command`, because a syntax error in a special builtin would end the shell. A user's function called `command` would break
// it, but the last report has removed such a function.
const dashDot = `\command .`

// ashDot is the bare dot. Under busybox's `command` an error in a subshell (`(: ${x?})`) returns from the command in the copy of the shell,
// and the copy reports the end of a command that still runs. The bare dot, although special, does not end this shell.
const ashDot = `\.`

// These patterns find trap commands. Signal names may have any case, as dash accepts. A number counts only where the arguments of the trap
// command may still go on.
var (
	trapsINT   = regexp.MustCompile(`(?i)\btrap\b(?s:.*)\b(sig)?int\b|\btrap\b\s*('[^']*'|"[^"]*")?([^\n;]|\\\n)*\s2\b|TRAPINT`)
	trappedINT = regexp.MustCompile(`(?m)' (SIG)?INT$|^TRAPINT \(\)`)
	traps40    = regexp.MustCompile(`(?i)\btrap\b(?s:.*)\b(40|(sig)?rtmin\+6)\b`)
)

var Dialects = map[string]*Dialect{
	"bash": {Name: "bash", SnapshotCost: 400 * time.Microsecond, Boot: bootBash, AbortSignal: 40, SetsTrap: traps40, Source: `\builtin .`, ReportCall: "__trl_e", ResendCall: "__trl_a", LastReport: `__trl_g %s&&\builtin :`, ListsFunctions: true, HidesTraps: true,
		InitVars: "__trl_n= __trl_o=0 __trl_y=1 __trl_dt= __trl_t= __trl_l=1;",
		Args:     []string{"--norc", "--noprofile", "--noediting", "-i", "+m", "+H", "+o", "history", "/proc/self/fd/3"}},
	"dash": {Name: "dash", SnapshotCost: 100 * time.Microsecond, Boot: bootPOSIX, AbortSignal: syscall.SIGINT, SetsTrap: trapsINT, SnapshotHasTrap: trappedINT, Source: dashDot, ReportCall: `\__trl_e`, ResendCall: `\__trl_a`, LastReport: `\__trl_g %s&&\:`, KeepStatus: `&&\:`, Quoted: true, InitVars: "__trl_n=;", PacketChannel: true, Stdin: "/dev/null",
		Args: []string{"-i", "+m", "-s"}},
	"ash": {Name: "ash", SnapshotCost: 100 * time.Microsecond, Boot: bootPOSIX, AbortSignal: syscall.SIGINT, SetsTrap: trapsINT, SnapshotHasTrap: trappedINT, Source: ashDot, ReportCall: `\__trl_e`, ResendCall: `\__trl_a`, LastReport: `\__trl_g %s&&\:`, KeepStatus: `&&\:`, Quoted: true, InitVars: "__trl_n=;", PacketChannel: true, Stdin: "/dev/null",
		Args: []string{"-i", "+m", "-I", "-s"}},
	"zsh": {Name: "zsh", SnapshotCost: 2 * time.Millisecond, Boot: bootZsh, AbortSignal: syscall.SIGINT, SetsTrap: trapsINT, SnapshotHasTrap: trappedINT, Source: `\builtin .`, ReportCall: "__trl_e", ResendCall: "__trl_a", LastReport: `__trl_g %s&&\builtin :`, KeepStatus: `&&\builtin :`, InitVars: "__trl_n=;", ListsFunctions: true, Stdin: "/dev/null",
		Args: []string{"-f", "-i", "+m", "-s"}},
}

// ErrNoAdapter says that the file is not a shell that trl can drive.
type ErrNoAdapter struct{ Path string }

func (e *ErrNoAdapter) Error() string {
	return fmt.Sprintf("%s is none of the shells that trl drives: sh (dash), bash, zsh, busybox ash", e.Path)
}

// Of recognises a shell by the name of the file behind path. It also returns the first words of its argv.
func Of(path string) (*Dialect, []string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, nil, fmt.Errorf("shell: %w", err)
	}
	called, name := filepath.Base(path), filepath.Base(real)
	switch {
	case name == "busybox" || strings.HasPrefix(name, "busybox."):
		return Dialects["ash"], []string{"ash"}, nil
	case name == "bash" || strings.HasPrefix(name, "bash-"):
		return Dialects["bash"], []string{"bash"}, nil
	case strings.HasPrefix(name, "zsh"):
		return Dialects["zsh"], []string{"zsh"}, nil
	case name == "dash" || name == "ash":
		return Dialects["dash"], []string{called}, nil
	}
	return nil, nil, &ErrNoAdapter{Path: path}
}

// FileText is the content of a file with a command's text. The redirections of an evaluated text are in it, because a shell traces the eval
// to the previous standard error.
func (k *Dialect) FileText(text, redirections string) string {
	if k.Quoted {
		return `\eval ` + Quote(text) + redirections + "\n"
	}
	return text
}

// RunLine runs the text in a file. The shell expands path between double quotes.
func (k *Dialect) RunLine(path string) string {
	switch {
	case k.Quoted:
		return k.Source + ` "` + path + `"`
	case k.Name == "bash": // otherwise its messages would count the lines of the channel
		return `\builtin eval "${-:$((LINENO=1,0)):0}$(<"` + path + `")"`
	}
	return `\builtin eval "$(<"` + path + `")"`
}

// AppendBegin appends the beginning of a line whose text is in the file with that number, and AppendText what runs that text. See
// boot/bash.sh.
func (k *Dialect) AppendBegin(b []byte, file int) []byte {
	if k.Name == "bash" {
		b = append(strconv.AppendInt(append(b, "__trl_b "...), int64(file), 10), `&&\builtin :;`...)
	}
	return b
}

func (k *Dialect) AppendText(b []byte, file int) []byte {
	if k.Name == "bash" {
		return append(b, `\builtin eval "${-:$((LINENO=__trl_l,0)):0}$__trl_t$__trl_m"`...)
	}
	return append(b, k.RunLine("$__trl_p/"+strconv.Itoa(file))...)
}

// refuseReadonly returns lines that end a script with a complaint if the session has made a variable read-only.
func (k *Dialect) refuseReadonly(name, complaints string) string {
	var test, message string
	code := 1
	switch k.Name {
	case "bash":
		test = fmt.Sprintf("[[ $(builtin declare -p %[1]s 2>/dev/null) == 'declare -'*([!\\ ])r*([!\\ ])' '%[1]s* ]]", name)
		message = "bash: " + name + ": readonly variable"
	case "zsh":
		test = fmt.Sprintf("[[ ${parameters[%s]-} == *-readonly* ]]", name)
		message = "zsh: read-only variable: " + name
	default:
		test, code = fmt.Sprintf("! (\\unset %s) 2>/dev/null", name), 2
		message = map[string]string{"dash": "sh", "ash": "ash"}[k.Name] + ": " + name + ": is read only"
	}
	return fmt.Sprintf("if %s; then %s '%%s\\n' %s >%s; %s %d; fi\n", test, k.Call("printf"), Quote(message), complaints, k.Call("return"), code)
}

// MayTrap says whether a text may set a trap, itself or by what it reads.
func MayTrap(text string) bool {
	for _, sign := range []string{"trap", "source", "eval", ". ", ".\t"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// Call is a builtin's name, whatever functions and aliases the user has. In POSIX shells a function cannot have the name of a special
// builtin.
func (k *Dialect) Call(name string) string {
	if k.ListsFunctions {
		return `\builtin ` + name
	}
	switch name {
	case "cd", "printf", "read":
		return `\command ` + name
	}
	return `\` + name
}

// Quote turns any text without NUL into one shell word.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
