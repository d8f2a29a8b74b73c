# dash and busybox ash: what a session's shell reads first. See bash.sh for what the lines of a command are; here one is
#     \command . "$__trl_p/TEXT";\__trl_e SEQ&&\:
# TEXT is one line: \eval 'the command' <"$__trl_p/IN" >"$__trl_p/OUT" 2>"$__trl_p/ERR". eval names itself in messages, where the dot alone would name its file; the dot is
# there because `return` in an eval at the top level ends dash. The shell's stdin is its script channel, since $0 and
# messages have the name of a script that is an argument.
# `command` because a syntax error in a special builtin would end dash; not in ash, where it lets errors out of subshells
# (kind.go). It is the one name of ours that a user's function could take (special builtins cannot be redefined), so each
# report unsets such a function.
readonly __trl_p=@P@ __trl_c=@P@/@C@ __trl_x=@P@/@X@
PS1= PS2= PS4='+ '
unset -f command
__trl_n=

# Report, and report again where an error dropped it, as in bash.sh.
__trl_e() {
	__trl_r=$?
	unset -f command
	\command printf 'e %s %s\n' "$1" "$__trl_r" >"$__trl_c" && __trl_n="$1 $__trl_r"
	return "$__trl_r"
}

__trl_a() {
	__trl_r=$?
	unset -f command
	case $__trl_n in
	"$1 "*) ;;
	*)
		\command printf 'e %s %s\n' "$1" "$__trl_r" >"$__trl_c" && __trl_n="$1 $__trl_r"
		;;
	esac
	return "$__trl_r"
}

# What was reported last, for a new gateway, as in bash.sh.
__trl_g() {
	__trl_r=$?
	unset -f command
	\command printf 'g %s %s\n' "$1" "$__trl_n" >"$__trl_c"
	return "$__trl_r"
}

# Snapshot into $1, marked with $2, in sections that trl turns into a script. POSIX has no way to list functions.
__trl_s() {
	__trl_r=$?
	unset -f command
	{
		set; \command echo '@E@ export'; export -p; \command echo '@E@ alias'; \command alias
		\command echo '@E@ umask'; \command umask; \command echo '@E@ trap'; trap; \command echo '@E@ readonly'; readonly -p
		\command echo '@E@ pwd'; \command pwd; \command echo '@E@ set'; set +o; \command echo "@E@ $2"
	} >|"$1" 2>/dev/null
	return "$__trl_r"
}

__trl_q() {
	__trl_y=$?
	\command printf 'x %s 0\n' "$__trl_y" >"$__trl_c" # first: the snapshot ends the shell where it may not write that much
	__trl_s "$__trl_x" "x0 @C@" || \:
	return "$__trl_y"
}
trap '__trl_q' EXIT

# A background process is a copy of the shell, since that alone has its functions: IN OUT ERR TEXT STATUS GATE SEQ.
# The outer copy waits at the gate until trl has put it into its own group, and outlives the inner one to tell its status.
__trl_j() {
	__trl_r=$?
	unset -f command
	(
		trap : TERM HUP # the inner one has the default again, and its end is told
		__trl_y=$-
		set +e
		\command read __trl_w <"$__trl_p/$6" || exit # nobody will let it through any more
		(
			case $__trl_y in *e*) set -e ;; esac
			\command . "$__trl_p/$4"
		) <"$1" >"$__trl_p/$2" 2>"$__trl_p/$3"
		\command printf 'q %s\n' "$?" >|"$__trl_p/$5"
	) &
	\command printf 'j %s %s\n' "$7" "$!" >"$__trl_c"
	return "$__trl_r"
}
