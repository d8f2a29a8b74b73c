# bash: what a session's shell reads first. It has no line of the user's yet, so names still mean what they say.
#
# @P@ is /proc/<trl's pid>/fd: what trl holds open, the shell opens by that path, so that nothing is inherited.
# @C@ is the number of the control pipe there, @X@ that of the memfd for the last snapshot, @E@ what ends a snapshot.
#
# A command is one line on the script channel:
#     builtin . "$__trl_p/TEXT" <"$__trl_p/IN" >"$__trl_p/OUT" 2>"$__trl_p/ERR";__trl_e SEQ
# The redirections belong to the dot, so they end with it whatever happens inside, and while lines of ours run, their
# traces, traps and complaints go to /dev/null, where the shell's own stdio stays.
readonly __trl_p=@P@ __trl_c=@P@/@C@ __trl_x=@P@/@X@
unset PS0 PS1 PS2 PROMPT_COMMAND HISTFILE
set +o history +H +m
BASH_ARGV0=bash
shopt -s execfail expand_aliases
__trl_n=

# End the abort that signal 40 began (also a stale one, which came between two commands), and the next one, should it come
# in between. Exists to be called first.
__trl_k() { while [[ -v __trl_u ]]; do builtin unset -v __trl_u; builtin trap - DEBUG; builtin set +T; builtin shopt -u extdebug; done; }

# Nothing is expanded without quotes below, not even $?: IFS may hold digits, and behind `builtin` an assignment is a word.

# Report: SEQ and the status of what ran before; first of all, since somebody waits for it. It hands the status on, for
# $? of the next command, but not where that would fire errexit.
__trl_e() {
	builtin local __trl_r="$?"
	builtin printf 'e %s %s\n' "$1" "$__trl_r" >"$__trl_c" && __trl_n="$1 $__trl_r"
	__trl_k
	if [[ $- == *e* ]]; then builtin return 0; fi
	builtin return "$__trl_r"
}

# Again: an error that returns to the top level drops the rest of its line, and the report with it. So each is followed
# by a line of its own that repeats what was not said.
__trl_a() {
	builtin local __trl_r="$?"
	if [[ $__trl_n != "$1 "* ]]; then
		builtin printf 'e %s %s\n' "$1" "$__trl_r" >"$__trl_c" && __trl_n="$1 $__trl_r"
		__trl_k
	fi
	if [[ $- == *e* ]]; then builtin return 0; fi
	builtin return "$__trl_r"
}

# Tell a new gateway, which asks as $1, what was reported last: its predecessor may have died with that in its hands.
__trl_g() {
	builtin local __trl_r="$?"
	builtin printf 'g %s %s\n' "$1" "$__trl_n" >"$__trl_c"
	if [[ $- == *e* ]]; then builtin return 0; fi
	builtin return "$__trl_r"
}

# Snapshot of the state into $1 (a path), marked with $2, by builtins only: no fork. It reads back with dot. Functions come
# last, as one of them may not read back as bash prints it; behind them, nothing is said without `builtin`. Aliases and POSIX
# mode, which change how functions read, are off until then. Traps for ERR, DEBUG and RETURN are not to be seen in here: who
# calls has put all traps there, and trl moves them to the end.
__trl_s() {
	builtin local __trl_r="$__trl_v"
	{
		builtin printf '%s state\n' '@E@'
		builtin shopt -p; builtin declare -p; builtin umask -p
		builtin printf 'cd -- %q && __trl_l=0 || __trl_l=1\n' "$PWD"
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
	if [[ $- == *e* ]]; then builtin return 0; fi
	builtin return "$__trl_r"
}

# Exit: what `exit` and errexit end still has its state; write it down. Inside a function its locals would pass for
# globals, so the mark says whether it was in one and trl then uses the snapshot before.
__trl_q() {
	builtin local __trl_r="$__trl_v" __trl_i __trl_f=0
	for __trl_i in "${FUNCNAME[@]:1}"; do
		case $__trl_i in source|main) ;; *) __trl_f=1 ;; esac
	done
	__trl_s "$__trl_x" "x$__trl_f @C@"
	builtin printf 'x %s %s\n' "$__trl_r" "$__trl_f" >"$__trl_c"
	builtin return "$__trl_r"
}
trap '__trl_v=$?; __trl_k; builtin trap -p >|"$__trl_x"; __trl_q' EXIT

# Abort: signal 40 arms a DEBUG trap that, under extdebug, returns 2 from every level of function, eval and dot until
# the script channel is reached again (BASH_SOURCE has one element there). SIGINT would not do: after a child that
# died of SIGTERM, bash runs the rest of the list.
__trl_2() { builtin return 2; }
trap '__trl_u=1; builtin shopt -s extdebug; builtin set -T; builtin trap '\''case ${FUNCNAME-} in __trl_*) ;; *) if ((${#BASH_SOURCE[@]} > 1)); then __trl_2; fi ;; esac'\'' DEBUG' 40

readonly -f __trl_k __trl_e __trl_a __trl_g __trl_s __trl_q __trl_2
