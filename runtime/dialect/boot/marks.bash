# bash in a terminal: what it reads in place of ~/.bashrc (--rcfile). @N@ is the terminal's nonce.
#
# The user's own file comes first, though ours is what is started: it sets PS1, PS0 and PROMPT_COMMAND, and whoever comes
# second has to spare what the first one set. We can.
if [ -r ~/.bashrc ]; then . ~/.bashrc; fi

# Nothing in a shell older than bash 4.4, which brought PS0.
if [ "${BASH_VERSINFO[0]:-0}" -gt 4 ] || [ "${BASH_VERSINFO[0]:-0}" -eq 4 -a "${BASH_VERSINFO[1]}" -ge 4 ]; then

case $- in *a*) __trl_z=-a ;; *) __trl_z=+a ;; esac # with allexport, a child's environment would have the nonce
set +a
__trl_r=  # a command has been started since the last prompt
__trl_h=0 # the number that the history will give it

# A and B, and what PS1 and PS0 have to print them and to take note. The nonce is in neither: users export PS1. Where these variables
# do not exist, as in a child that has such a PS1, that prints nothing. Arithmetic in a prompt is done in this shell.
__trl_m=$'\e]133;A;aid=@N@\a' __trl_n=$'\e]133;B;aid=@N@\a'
__trl_i='\[${__trl_m:+${__trl_m:$((__trl_h=\!,0))}}\]'
__trl_j='\[${__trl_n-}\]'
__trl_k='${__trl_m:+${__trl_m:$((__trl_r=1,0)):0}$({ __trl_c; } 2>/dev/null)}'

# First of PROMPT_COMMAND: the end of a command, with its status, which it hands on.
__trl_d() {
	{ builtin local - "__trl_s=$?"; builtin set +x; } 2>/dev/null # nobody wants a trace of this, nor the nonce in it
	if [ -n "$__trl_r" ]; then builtin printf '\e]133;D;%s;aid=@N@\a' "$__trl_s"; fi
	__trl_r=
	builtin return "$__trl_s"
}

# Last of PROMPT_COMMAND, as prompts that others make are new each time: A and B around the prompt. Only in PS1 is \! the
# number of the command to come. PS0 is printed when a command has been read, once for a whole line, and not for an empty one.
# Without promptvars the prompts would show our text as it is: then there are no marks.
__trl_a() {
	{ builtin local - "__trl_s=$?"; builtin set +aux; } 2>/dev/null # nobody wants a trace of this, nor the nonce in it
	if ! builtin shopt -q promptvars; then
		PS1=${PS1//"$__trl_i"/}
		PS1=${PS1//"$__trl_j"/} PS0=${PS0//"$__trl_k"/}
		builtin return "$__trl_s"
	fi
	if [[ $PS1 != *"$__trl_i"* ]]; then PS1=$__trl_i$PS1$__trl_j; fi
	if [[ $PS0 != *"$__trl_k"* ]]; then PS0=$__trl_k$PS0; fi
	builtin return "$__trl_s"
}

# In PS0, in a subshell: E, the command's text as the history has it, and C. A command that did not become a new entry
# (HISTCONTROL) is not known: the last entry is another one.
__trl_c() {
	{ builtin local - __trl_t; builtin set +x; } 2>/dev/null
	__trl_t=$(HISTTIMEFORMAT= builtin history 1 2>/dev/null)
	if [[ $__trl_t =~ ^\ *([0-9]+)[*\ ]\ (.*)$ && ${BASH_REMATCH[1]} == "$__trl_h" ]]; then
		__trl_t=${BASH_REMATCH[2]}
		__trl_t=${__trl_t//\\/\\\\}
		__trl_t=${__trl_t//;/\\x3b}
		__trl_t=${__trl_t//$'\n'/\\x0a}
		__trl_t=${__trl_t//$'\t'/\\x09}
		__trl_t=${__trl_t//[[:cntrl:]]/}
		builtin printf '\e]633;E;%s;@N@\a' "$__trl_t"
	fi
	builtin printf '\e]133;C;aid=@N@\a'
}

if [[ ${BASH_VERSINFO[0]} -gt 5 || ${BASH_VERSINFO[0]} -eq 5 && ${BASH_VERSINFO[1]} -ge 1 ]]; then
	PROMPT_COMMAND=('{ __trl_d; } 2>/dev/null' "${PROMPT_COMMAND[@]}" '{ __trl_a; } 2>/dev/null') # an array since 5.1
else
	PROMPT_COMMAND="{ __trl_d; } 2>/dev/null${PROMPT_COMMAND:+;$PROMPT_COMMAND};{ __trl_a; } 2>/dev/null"
fi
set $__trl_z

fi
