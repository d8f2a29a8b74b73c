# zsh: what a session's shell reads first. See bash.sh for what the lines of a command are; here one is
#     \builtin eval "$(<"$__trl_p/TEXT")" <"$__trl_p/IN" >"$__trl_p/OUT" 2>"$__trl_p/ERR";__trl_e SEQ&&\builtin :
# SIGINT aborts.
typeset -gr __trl_p=@P@ __trl_c=@P@/@C@ __trl_x=@P@/@X@
unset HISTFILE
PS1= PS2= PROMPT= RPROMPT= PROMPT_EOL_MARK=
unsetopt zle monitor notify bg_nice hup check_jobs prompt_cr prompt_sp banghist 2>/dev/null
setopt interactive_comments multios
zmodload zsh/parameter
typeset -g __trl_n=

__trl_e() {
	builtin local __trl_r="$?"
	builtin printf 'e %s %s\n' "$1" "$__trl_r" >"$__trl_c" && __trl_n="$1 $__trl_r"
	builtin return "$__trl_r"
}

__trl_a() {
	builtin local __trl_r="$?"
	if [[ $__trl_n != "$1 "* ]] {
		builtin printf 'e %s %s\n' "$1" "$__trl_r" >"$__trl_c" && __trl_n="$1 $__trl_r"
	}
	builtin return "$__trl_r"
}

# What was reported last, for a new gateway, as in bash.sh.
__trl_g() {
	builtin local __trl_r="$?"
	builtin printf 'g %s %s\n' "$1" "$__trl_n" >"$__trl_c"
	builtin return "$__trl_r"
}

# Snapshot, as in bash.sh. Parameters that zsh marks special, read-only ones of ours and locals are left out: assigning those
# would end the dot. Two options change how this reads, or what is printed.
__trl_s() {
	builtin local __trl_r="$?" __trl_i __trl_o="options[ksharrays]=${options[ksharrays]} options[rcquotes]=${options[rcquotes]} options[localoptions]=${options[localoptions]} options[localtraps]=${options[localtraps]}"
	builtin setopt local_options no_ksh_arrays no_rc_quotes local_traps
	{
		builtin trap; builtin printf '%s state\n' '@E@'
		builtin trap - DEBUG ZERR # until the end of this: they would run for each line
		for __trl_i in ${(k)parameters}; do
			case ${parameters[$__trl_i]} in *-special*|*-local*|*-hide*) continue ;; esac
			case $__trl_i in
			__trl_[pcxnrifo]|[0-9\#?\$!*@-]*|_|status|argv|pipestatus) ;;
			*) builtin typeset -p -- $__trl_i ;;
			esac
		done
		for __trl_i in PATH CDPATH FPATH MANPATH IFS HOME LANG LC_ALL LC_COLLATE LC_CTYPE LC_MESSAGES LC_NUMERIC LC_TIME TERM PS4 NULLCMD READNULLCMD WORDCHARS path; do
			if [[ -v $__trl_i ]] { builtin typeset -p -- $__trl_i } else { builtin printf 'unset -v %s\n' $__trl_i }
		done
		builtin printf 'umask '; builtin umask
		builtin printf '[[ -d %q ]] && cd -q -- %q 2>/dev/null\ncd -q -- %q && __trl_l=0 || __trl_l=1\n' "$PWD" "$OLDPWD" "$PWD"
		builtin hash -dL; builtin alias -L; builtin alias -sL; builtin printf 'options[aliases]=off\n'
		builtin typeset -f
		for __trl_i in ${(k)options}; do
			case $__trl_i in
			interactive|shinstdin|singlecommand|privileged|restricted|login|zle|monitor|notify|exec|errexit|nounset|ksharrays|rcquotes|localoptions|localtraps) ;;
			*) builtin printf 'options[%s]=%s\n' $__trl_i ${options[$__trl_i]} ;;
			esac
		done
		builtin printf '%s\n' "$__trl_o"
		[[ -o errexit ]] && builtin printf '\\builtin set -o errexit\n'
		[[ -o nounset ]] && builtin printf '\\builtin set -o nounset\n'
		builtin printf '%s %s\n' '@E@' "$2"
	} >|"$1" 2>/dev/null
	builtin return "$__trl_r"
}

# The mark is not written here with its number: a state brings the functions of the shell that it is from.
__trl_q() {
	builtin local __trl_r="$?" __trl_f=0 __trl_i
	for __trl_i in "${(@)funcstack[2,-1]}"; do
		case $__trl_i in /*|'(eval)') ;; *) __trl_f=1 ;; esac
	done
	builtin printf 'x %s %s\n' "$__trl_r" "$__trl_f" >"$__trl_c" # first, as in posix.sh
	__trl_s "$__trl_x" "x$__trl_f ${__trl_c##*/}" || builtin :
}
trap '__trl_q' EXIT
