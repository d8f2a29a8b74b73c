# zsh in a terminal: what it reads as its .zshenv. @N@ is the terminal's nonce.
#
# It gives the user's own ZDOTDIR back, so that zsh reads the user's other files by itself.
unset TRL_ZSHENV
if [[ -v TRL_ZDOTDIR ]]; then export ZDOTDIR="$TRL_ZDOTDIR"; unset TRL_ZDOTDIR; else unset ZDOTDIR; fi
if [[ -r ${ZDOTDIR:-$HOME}/.zshenv ]]; then . "${ZDOTDIR:-$HOME}/.zshenv"; fi

if [[ -o interactive ]]; then

__trl_r=

# The end of a command, with its status, and A and B around a prompt that is new each time others make it.
__trl_precmd() {
	{ builtin local s=$?; builtin setopt local_options no_xtrace; } 2>/dev/null # nobody wants a trace of this, nor the nonce in it
	if [[ -n $__trl_r ]]; then builtin print -nr -- $'\e]133;D;'$s$';aid=@N@\a'; fi
	__trl_r=
	if [[ $PS1 != *'133;A;aid=@N@'* ]]; then PS1=$'%{\e]133;A;aid=@N@\a%}'$PS1$'%{\e]133;B;aid=@N@\a%}'; fi
	return $s
}

__trl_preexec() {
	{ builtin setopt local_options no_xtrace; } 2>/dev/null
	builtin local t=${1//\\/\\\\}
	t=${t//;/\\x3b}
	t=${t//$'\n'/\\x0a}
	t=${t//$'\t'/\\x09}
	t=${t//[[:cntrl:]]/}
	builtin print -nr -- $'\e]633;E;'$t$';@N@\a\e]133;C;aid=@N@\a'
	__trl_r=1
	PS1=${PS1//$'%{\e]133;'[AB]$';aid=@N@\a%}'/} # if PS1 is exported, the command is not to know the nonce
}

# First, for $?; the rest is appended by the user's files.
precmd_functions=(__trl_precmd $precmd_functions)
preexec_functions=(__trl_preexec $preexec_functions)

fi
