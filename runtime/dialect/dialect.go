// Package dialect holds what differs between bash, dash, ash and zsh, as text: how each is started, the scripts that it reads, and the
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

// Dialect is what differs between the shells: how a shell is started, which text it reads first, how a busy shell is brought back to
// its script channel, and how its state is written and read.
type Dialect struct {
	Name string
	// Args follow argv[0]. bash's last one is the script channel, descriptor 3: as a script argument it gives no prompts, and
	// the shell moves it where the user's `exec 3>&-` does not reach. Interactive, so that errors return to it.
	// ash has -I (ignoreeof), since it takes a SIGINT while it reads its stdin for the end of that.
	Args []string
	Boot string
	// PacketChannel: the channel is a packet pipe, since these shells read blocks and drop the whole block on an error.
	PacketChannel bool
	// Stdin of a command that is given none, where the shell's own is the script channel. zsh does not survive SIGINT when
	// the channel is a script argument; dash and ash name such an argument in $0 and in each message.
	Stdin       string
	AbortSignal syscall.Signal
	// traps: text may set a trap for abort, which such a shell would run, and then go on with its list; trapped: a snapshot
	// has one, nil for bash, whose snapshot always has ours.
	SetsTrap, SnapshotHasTrap *regexp.Regexp

	Source         string // reads a script, whatever the user redefined
	ReportCall     string // the call that reports, likewise
	ResendCall     string // the call that repeats a report which was dropped
	LastReportCall string // the call that tells what was reported last
	// KeepStatus follows each of these calls where they return the status of the last command: neither errexit nor ERR sees that.
	KeepStatus string
	// Quoted: a command's text is given as `\eval 'TEXT'`, which dot reads. Else eval reads it from its file.
	Quoted bool
	// InitVars sets our variables in a shell that has read a state, with the values that they had in another shell.
	InitVars string
	// HidesTraps: once a session may have traps that would run for our own lines, its lines put them away.
	HidesTraps bool
	// ListsFunctions: a snapshot has the functions, and a fresh shell reads it back as it is.
	ListsFunctions bool
	// SnapshotCost is about what one of a plain shell costs it.
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

// dashDot: a syntax error in a special builtin would end the shell, but for `command`, whose one weakness, a user's
// function of that name, the last report has removed.
const dashDot = `\command .`

// ashDot: under `command` an error in a subshell (`(: ${x?})`) comes back out of it in busybox, and the copy reports the
// end of a command that still runs. Its bare dot, special as it is, does not end the shell.
const ashDot = `\.`

// The words of a command, its signals named in any case, as dash takes them. A number is one only where the trap's own
// command may still go on.
var (
	trapsINT   = regexp.MustCompile(`(?i)\btrap\b(?s:.*)\b(sig)?int\b|\btrap\b\s*('[^']*'|"[^"]*")?([^\n;]|\\\n)*\s2\b|TRAPINT`)
	trappedINT = regexp.MustCompile(`(?m)' (SIG)?INT$|^TRAPINT \(\)`)
	traps40    = regexp.MustCompile(`(?i)\btrap\b(?s:.*)\b(40|(sig)?rtmin\+6)\b`)
)

var Dialects = map[string]*Dialect{
	"bash": {Name: "bash", SnapshotCost: 400 * time.Microsecond, Boot: bootBash, AbortSignal: 40, SetsTrap: traps40, Source: `\builtin .`, ReportCall: "__trl_e", ResendCall: "__trl_a", LastReportCall: "__trl_g", ListsFunctions: true, HidesTraps: true,
		InitVars: "__trl_n= __trl_o=0 __trl_y=1 __trl_dt= __trl_t= __trl_l=1;",
		Args:     []string{"--norc", "--noprofile", "--noediting", "-i", "+m", "+H", "+o", "history", "/proc/self/fd/3"}},
	"dash": {Name: "dash", SnapshotCost: 100 * time.Microsecond, Boot: bootPOSIX, AbortSignal: syscall.SIGINT, SetsTrap: trapsINT, SnapshotHasTrap: trappedINT, Source: dashDot, ReportCall: `\__trl_e`, ResendCall: `\__trl_a`, LastReportCall: `\__trl_g`, KeepStatus: `&&\:`, Quoted: true, InitVars: "__trl_n=;", PacketChannel: true, Stdin: "/dev/null",
		Args: []string{"-i", "+m", "-s"}},
	"ash": {Name: "ash", SnapshotCost: 100 * time.Microsecond, Boot: bootPOSIX, AbortSignal: syscall.SIGINT, SetsTrap: trapsINT, SnapshotHasTrap: trappedINT, Source: ashDot, ReportCall: `\__trl_e`, ResendCall: `\__trl_a`, LastReportCall: `\__trl_g`, KeepStatus: `&&\:`, Quoted: true, InitVars: "__trl_n=;", PacketChannel: true, Stdin: "/dev/null",
		Args: []string{"-i", "+m", "-I", "-s"}},
	"zsh": {Name: "zsh", SnapshotCost: 2 * time.Millisecond, Boot: bootZsh, AbortSignal: syscall.SIGINT, SetsTrap: trapsINT, SnapshotHasTrap: trappedINT, Source: `\builtin .`, ReportCall: "__trl_e", ResendCall: "__trl_a", LastReportCall: "__trl_g", KeepStatus: `&&\builtin :`, InitVars: "__trl_n=;", ListsFunctions: true, Stdin: "/dev/null",
		Args: []string{"-f", "-i", "+m", "-s"}},
}

// ErrNoAdapter: the file is not a shell that trl knows how to drive.
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

// FileText is what a file with a command's text holds. The redirections of a text that is evaluated in there belong to that: a shell traces
// the eval to the standard error of before.
func (k *Dialect) FileText(text, redirections string) string {
	if k.Quoted {
		return `\eval ` + Quote(text) + redirections + "\n"
	}
	return text
}

// RunLine is what runs the text in a file, whose path the shell expands between double quotes.
func (k *Dialect) RunLine(path string) string {
	switch {
	case k.Quoted:
		return k.Source + ` "` + path + `"`
	case k.Name == "bash": // whose messages count the lines of the channel else
		return `\builtin eval "${-:$((LINENO=1,0)):0}$(<"` + path + `")"`
	}
	return `\builtin eval "$(<"` + path + `")"`
}

// AppendBegin adds what a line begins with whose text is in the file of that number, and AppendText what runs that text. See
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

// refuseReadonly returns lines that end a script with a complaint when the session has made a variable read-only.
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

// Call is a builtin's name, whatever functions and aliases the user has. A POSIX shell's special builtins have no functions of
// their name.
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

// Quote makes one shell word of any text without NUL.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
