# bash: what a session's shell reads first. It has no line of the user's yet, so names still mean what they say.
#
# @P@ is /proc/<trl's pid>/fd: what trl holds open, the shell opens by that path, so that nothing is inherited.
# @C@ is the number of the control pipe there, @X@ that of the memfd for the last snapshot, @E@ what ends a snapshot.
#
# A command is one line on the script channel:
#     __trl_b TEXT&&\builtin :;\builtin eval "${-:$((LINENO=__trl_l,0)):0}$__trl_t$__trl_m" >"$__trl_p/OUT" 2>"$__trl_p/ERR";__trl_e SEQ
# The text is evaluated where the shell reads its script, so it behaves as at a prompt: messages name no file, BASH_SOURCE
# is the shell's own, and traps for DEBUG and RETURN stay set. The redirections belong to eval: bash traces the eval before
# it makes them, and undoes them whatever happens in the text. The shell's own stdout and stderr are closed. So bash saves
# nothing at descriptors 10 and 11, which are the user's, and what lines of ours trace or complain goes nowhere.
# __trl_b reads the text and has the status of the last command, for $? of this one; `&&` keeps ERR and errexit from seeing
# that. LINENO is set in an expansion, since a command of its own would set $?.
#
# A session that may have traps for ERR, DEBUG or RETURN has them set only while a command runs:
#     …;\builtin trap -p … >|"$__trl_x…";\builtin trap - …;__trl_e SEQ t
# and $__trl_t sets them.
readonly __trl_p=@P@ __trl_c=@P@/@C@ __trl_x=@P@/@X@
unset PS0 PS1 PS2 PROMPT_COMMAND HISTFILE
set +o history +H +m
BASH_ARGV0=bash
shopt -s execfail expand_aliases
__trl_n=           # number and status of the command that was reported last
__trl_o=0          # the status that the next command is to see
__trl_m=           # the text of the command
__trl_y=1          # a command has run since the traps were put away
__trl_dt=          # the traps that are put away
__trl_t= __trl_l=1 # the lines that set them again, and the line number to begin with, so that the text's first line is 1
exec >&- 2>&-

# Nothing is expanded without quotes below, not even $?: IFS may hold digits. Assignments behind `builtin` are quoted as a
# whole: with `set -k` they would go into its environment.

# End the abort that signal 40 began (also a stale one, which came between two commands), and the next one, should it come
# in between.
__trl_k() {
	while [[ -v __trl_u ]]; do
		builtin trap - DEBUG
		builtin shopt -u extdebug # which turns T and E off
		case $__trl_u in *T*) builtin set -T ;; esac
		case $__trl_u in *E*) builtin set -E ;; esac
		builtin unset -v __trl_u
	done
}

# Put the user's traps away, which __trl_x lists. __trl_t ends with what gives the next command its $?: a function, and where
# that would run a trap for DEBUG or RETURN, a subshell.
__trl_w() {
	builtin local __trl_i
	if [[ ! -v __trl_u ]]; then __trl_dt=$(<"$__trl_x"); fi # an abort has taken the place of DEBUG's: those of before stay
	__trl_t= __trl_l=1
	if [[ -n $__trl_dt ]]; then
		__trl_t="{ builtin ${__trl_dt//$'\n'trap -- /$'\n'builtin trap -- }"$'\n'
		if [[ $__trl_dt == *' ERR' ]]; then
			__trl_t+=$'__trl_z&&builtin :\n'
		elif [[ $__trl_o != 0 ]]; then
			__trl_t+="(builtin exit $__trl_o)&&:"$'\n'
		fi
		__trl_t+=$'} 2>/dev/null\n'
		__trl_i=${__trl_t//[!$'\n']}
		__trl_l=$((1 - ${#__trl_i}))
	fi
}

# Two that have a status: that of the command before this one, and that of what has just run.
__trl_z() { builtin return "$__trl_o"; }
__trl_h() { builtin return "$__trl_r"; }

# Begin: read the text in the file $1.
__trl_b() {
	__trl_m=$(<"$__trl_p/$1")
	__trl_y=1
	builtin return "$__trl_o"
}

# Report: SEQ and the status of what ran before; first of all, since somebody waits for it.
__trl_e() {
	__trl_r=$?
	if [[ -n ${2-} ]]; then __trl_r=$__trl_v; fi
	if [[ -v __trl_u ]]; then __trl_r=130; fi
	if [[ -n $__trl_y ]]; then
		__trl_o=$__trl_r __trl_y= __trl_m=
		if [[ -n ${2-} ]]; then __trl_w; fi
	fi
	builtin printf 'e %s %s\n' "$1" "$__trl_r" >"$__trl_c" && __trl_n="$1 $__trl_r"
	__trl_k
}

# Again: an error that returns to the top level drops the rest of its line, and the report with it. So each is followed
# by a line of its own that repeats what was not said.
__trl_a() {
	__trl_r=$?
	if [[ $__trl_n == "$1 "* ]]; then builtin return 0; fi
	if __trl_h; then __trl_e "$@"; else __trl_e "$@"; fi
}

# Tell a new gateway, which asks as $1, what was reported last: its predecessor may have died with that in its hands. The question
# may stand between a line whose end was dropped and __trl_a, which needs the status.
__trl_g() {
	__trl_r=$?
	builtin printf 'g %s %s\n' "$1" "$__trl_n" >"$__trl_c"
	builtin return "$__trl_r"
}

# Snapshot of the state into $1 (a path), marked with $2, by builtins only: no fork. It reads back with dot. Functions come
# last, as one of them may not read back as bash prints it; behind them, nothing is said without `builtin`. Aliases and POSIX
# mode, which change how functions read, are off until then. Traps for ERR, DEBUG and RETURN are not to be seen in here: who
# calls has put all traps there, and trl moves them to the end.
__trl_s() {
	{
		if [[ -z $__trl_y && -n $__trl_dt ]]; then builtin printf '%s\n' "$__trl_dt"; fi
		builtin printf '%s state\n' '@E@'
		builtin shopt -p; builtin declare -p; builtin umask -p
		builtin printf 'cd -- %q; [[ . -ef %q ]] && __trl_l=0 || __trl_l=1\n' "$PWD" "$PWD" # PWD may be read-only
		if [[ -v OLDPWD ]]; then builtin printf 'OLDPWD=%q\n' "$OLDPWD"; else builtin printf 'unset -v OLDPWD\n'; fi
		builtin alias -p; builtin set +o
		builtin printf 'set +e +u +o posix\nshopt -u expand_aliases\n'
		builtin declare -f; builtin declare -Fx
		if builtin shopt -q expand_aliases; then builtin printf '\\builtin shopt -s expand_aliases\n'; fi
		if [[ -o posix ]]; then builtin printf '\\builtin set -o posix\n'; fi
		if [[ -o nounset ]]; then builtin printf '\\builtin set -o nounset\n'; fi
		if [[ -o errexit ]]; then builtin printf '\\builtin set -o errexit\n'; fi
		builtin printf '%s %s\n' '@E@' "$2"
	} >>"$1" 2>/dev/null
}

# Exit: what `exit` and errexit end still has its state; write it down. Inside a function its locals would pass for
# globals, so the mark says whether it was in one and trl then uses the snapshot before.
__trl_q() {
	builtin local "__trl_r=$__trl_v" __trl_i "__trl_f=0"
	for __trl_i in "${FUNCNAME[@]:1}"; do
		case $__trl_i in source|main) ;; *) __trl_f=1 ;; esac
	done
	builtin printf 'x %s %s\n' "$__trl_r" "$__trl_f" >"$__trl_c" # first: errexit may end what follows
	if [[ -n $__trl_o ]]; then builtin printf 'trap - XFSZ\n'; fi >>"$__trl_x" 2>/dev/null
	__trl_s "$__trl_x" "x$__trl_f @C@"
	builtin return "$__trl_r"
}
# XFSZ would end the shell where it may not write a snapshot (`ulimit -f 0`), and its status would be lost. So the trap for
# EXIT ignores that signal. A trap of the user's for XFSZ stays, and what is written says nothing of ours (__trl_o).
__trl_f() {
	builtin trap -p XFSZ >|"$__trl_x" 2>/dev/null || builtin :
	__trl_o=
	if [[ ! -s $__trl_x ]]; then
		builtin trap '' XFSZ
		__trl_o=1
	fi
}
# What an abort does to commands must not be done to these: a loop over nothing says so without being a command.
trap 'for __trl_i in ${-:$((__trl_v=$?,__trl_j=1,0)):0}; do :; done; __trl_k; __trl_f; builtin trap -p >|"$__trl_x" 2>/dev/null || builtin :; __trl_q' EXIT

# Abort: signal 40 arms a DEBUG trap that, under extdebug, returns 2 from every function and dot, and outside of these ends
# every loop and skips every command, until __trl_e runs. (`break` is the last that the trap does, and its status the
# opposite of break's.) SIGINT would not do: it ends a bash whose script is an argument,
# and after a child that died of SIGTERM, bash runs the rest of the list.
__trl_2() { builtin return 2; }
trap '__trl_u=$-; builtin shopt -s extdebug; builtin set -T; builtin trap - RETURN; builtin trap '\''case ${__trl_j-}${FUNCNAME-} in 1*|__trl_*) ;; ?*) __trl_2 ;; *) case $BASH_COMMAND in __trl_*|\\builtin\ trap\ *) ;; *) ! builtin break 99 2>/dev/null ;; esac ;; esac'\'' DEBUG' 40

readonly -f __trl_k __trl_w __trl_z __trl_h __trl_b __trl_e __trl_a __trl_g __trl_s __trl_f __trl_q __trl_2
