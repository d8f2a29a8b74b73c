# fish in a terminal, read after the user's own files (-C). @N@ is the terminal's nonce.
function __trl_a --on-event fish_prompt
    printf '\e]133;A;aid=@N@\a'
end
function __trl_c --on-event fish_preexec
    set -l t (string replace -a -- '\\' '\\\\' "$argv[1]" | string replace -a -- ';' '\x3b' | string join '\x0a')
    printf '\e]633;E;%s;@N@\a\e]133;C;aid=@N@\a' "$t"
end
function __trl_d --on-event fish_postexec
    printf '\e]133;D;%s;aid=@N@\a' $status
end
