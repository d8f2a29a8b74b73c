package runtime

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

// A dialect is what differs between the shells: how one is started, which text it reads first, how a busy one is brought
// back to its script channel, and how its state is written and read.
type dialect struct {
	name string
	// args follow argv[0]. bash's last one is the script channel, descriptor 3: as a script argument it gives no prompts, and
	// the shell moves it where the user's `exec 3>&-` does not reach. Interactive, so that errors return to it.
	// ash has -I (ignoreeof), since it takes a SIGINT while it reads its stdin for the end of that.
	args []string
	boot string
	// packetChannel: the channel is a packet pipe, since these shells read blocks and drop the whole block on an error.
	packetChannel bool
	// stdin of a command that is given none, where the shell's own is the script channel. zsh does not survive SIGINT when
	// the channel is a script argument; dash and ash name such an argument in $0 and in each message.
	stdin       string
	abortSignal syscall.Signal
	// traps: text may set a trap for abort, which such a shell would run, and then go on with its list; trapped: a snapshot
	// has one, nil for bash, whose snapshot always has ours.
	setsTrap, snapshotHasTrap *regexp.Regexp

	source         string // reads a script, whatever the user redefined
	reportCall     string // the call that reports, likewise
	resendCall     string // the call that repeats a report which was dropped
	lastReportCall string // the call that tells what was reported last
	// keepStatus follows each of these calls where they return the status of the last command: neither errexit nor ERR sees that.
	keepStatus string
	// quoted: a command's text is given as `\eval 'TEXT'`, which dot reads. Else eval reads it from its file.
	quoted bool
	// initVars sets our variables in a shell that has read a state, with the values that they had in another shell.
	initVars string
	// hidesTraps: once a session may have traps that would run for our own lines, its lines put them away.
	hidesTraps bool
	// listsFunctions: a snapshot has the functions, and a fresh shell reads it back as it is.
	listsFunctions bool
	// snapshotCost is about what one of a plain shell costs it.
	snapshotCost time.Duration
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

var dialects = map[string]*dialect{
	"bash": {name: "bash", snapshotCost: 400 * time.Microsecond, boot: bootBash, abortSignal: 40, setsTrap: traps40, source: `\builtin .`, reportCall: "__trl_e", resendCall: "__trl_a", lastReportCall: "__trl_g", listsFunctions: true, hidesTraps: true,
		initVars: "__trl_n= __trl_o=0 __trl_y=1 __trl_dt= __trl_t= __trl_l=1;",
		args:     []string{"--norc", "--noprofile", "--noediting", "-i", "+m", "+H", "+o", "history", "/proc/self/fd/3"}},
	"dash": {name: "dash", snapshotCost: 100 * time.Microsecond, boot: bootPOSIX, abortSignal: syscall.SIGINT, setsTrap: trapsINT, snapshotHasTrap: trappedINT, source: dashDot, reportCall: `\__trl_e`, resendCall: `\__trl_a`, lastReportCall: `\__trl_g`, keepStatus: `&&\:`, quoted: true, initVars: "__trl_n=;", packetChannel: true, stdin: "/dev/null",
		args: []string{"-i", "+m", "-s"}},
	"ash": {name: "ash", snapshotCost: 100 * time.Microsecond, boot: bootPOSIX, abortSignal: syscall.SIGINT, setsTrap: trapsINT, snapshotHasTrap: trappedINT, source: ashDot, reportCall: `\__trl_e`, resendCall: `\__trl_a`, lastReportCall: `\__trl_g`, keepStatus: `&&\:`, quoted: true, initVars: "__trl_n=;", packetChannel: true, stdin: "/dev/null",
		args: []string{"-i", "+m", "-I", "-s"}},
	"zsh": {name: "zsh", snapshotCost: 2 * time.Millisecond, boot: bootZsh, abortSignal: syscall.SIGINT, setsTrap: trapsINT, snapshotHasTrap: trappedINT, source: `\builtin .`, reportCall: "__trl_e", resendCall: "__trl_a", lastReportCall: "__trl_g", keepStatus: `&&\builtin :`, initVars: "__trl_n=;", listsFunctions: true, stdin: "/dev/null",
		args: []string{"-f", "-i", "+m", "-s"}},
}

// ErrNoAdapter: the file is not a shell that trl knows how to drive.
type ErrNoAdapter struct{ Path string }

func (e *ErrNoAdapter) Error() string {
	return fmt.Sprintf("%s is none of the shells that trl drives: sh (dash), bash, zsh, busybox ash", e.Path)
}

// dialectOf recognises a shell by the name of the file behind path, and returns what to call it in argv[0].
func dialectOf(path string) (*dialect, []string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, nil, fmt.Errorf("shell: %w", err)
	}
	called, name := filepath.Base(path), filepath.Base(real)
	switch {
	case name == "busybox" || strings.HasPrefix(name, "busybox."):
		return dialects["ash"], []string{"ash"}, nil
	case name == "bash" || strings.HasPrefix(name, "bash-"):
		return dialects["bash"], []string{"bash"}, nil
	case strings.HasPrefix(name, "zsh"):
		return dialects["zsh"], []string{"zsh"}, nil
	case name == "dash" || name == "ash":
		return dialects["dash"], []string{called}, nil
	}
	return nil, nil, &ErrNoAdapter{Path: path}
}

// fileText is what a file with a command's text holds. The redirections of a text that is evaluated in there belong to that: a shell traces
// the eval to the standard error of before.
func (k *dialect) fileText(text, redirections string) string {
	if k.quoted {
		return `\eval ` + quote(text) + redirections + "\n"
	}
	return text
}

// runLine is what runs the text in a file, whose path the shell expands between double quotes.
func (k *dialect) runLine(path string) string {
	switch {
	case k.quoted:
		return k.source + ` "` + path + `"`
	case k.name == "bash": // whose messages count the lines of the channel else
		return `\builtin eval "${-:$((LINENO=1,0)):0}$(<"` + path + `")"`
	}
	return `\builtin eval "$(<"` + path + `")"`
}

// appendBegin adds what a line begins with whose text is in the file of that number, and appendText what runs that text. See
// boot/bash.sh.
func (k *dialect) appendBegin(b []byte, file int) []byte {
	if k.name == "bash" {
		b = append(strconv.AppendInt(append(b, "__trl_b "...), int64(file), 10), `&&\builtin :;`...)
	}
	return b
}

func (k *dialect) appendText(b []byte, file int) []byte {
	if k.name == "bash" {
		return append(b, `\builtin eval "${-:$((LINENO=__trl_l,0)):0}$__trl_t$__trl_m"`...)
	}
	return append(b, k.runLine("$__trl_p/"+strconv.Itoa(file))...)
}

// refuseReadonly returns lines that end a script with a complaint when the session has made a variable read-only.
func (k *dialect) refuseReadonly(name, complaints string) string {
	var test, message string
	code := 1
	switch k.name {
	case "bash":
		test = fmt.Sprintf("[[ $(builtin declare -p %[1]s 2>/dev/null) == 'declare -'*([!\\ ])r*([!\\ ])' '%[1]s* ]]", name)
		message = "bash: " + name + ": readonly variable"
	case "zsh":
		test = fmt.Sprintf("[[ ${parameters[%s]-} == *-readonly* ]]", name)
		message = "zsh: read-only variable: " + name
	default:
		test, code = fmt.Sprintf("! (\\unset %s) 2>/dev/null", name), 2
		message = map[string]string{"dash": "sh", "ash": "ash"}[k.name] + ": " + name + ": is read only"
	}
	return fmt.Sprintf("if %s; then %s '%%s\\n' %s >%s; %s %d; fi\n", test, k.call("printf"), quote(message), complaints, k.call("return"), code)
}

// mayTrap says whether a text may set a trap, itself or by what it reads.
func mayTrap(text string) bool {
	for _, sign := range []string{"trap", "source", "eval", ". ", ".\t"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// call is a builtin's name, whatever functions and aliases the user has. A POSIX shell's special builtins have no functions of
// their name.
func (k *dialect) call(name string) string {
	if k.listsFunctions {
		return `\builtin ` + name
	}
	switch name {
	case "cd", "printf", "read":
		return `\command ` + name
	}
	return `\` + name
}

// quote makes one shell word of any text without NUL.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
