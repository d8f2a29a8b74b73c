#!/bin/sh
# What the tests need besides Go: other shells, the programs that users run in them, a browser, and a C compiler for -race.
# As root on Debian or Ubuntu it installs what is missing. Elsewhere it lists what is missing, and tests of a missing shell are skipped.
set -eu

missing() { # prints the packages whose command is missing
  while read -r command package; do
    command -v "$command" >/dev/null 2>&1 || printf '%s ' "$package"
  done <<'LIST'
bash bash
dash dash
zsh zsh
busybox busybox
python3 python3
ps procps
setsid util-linux
bwrap bubblewrap
git git
curl curl
jq jq
fish fish
vim vim
less less
tmux tmux
htop htop
fzf fzf
ssh openssh-client
gcc gcc
sudo sudo
setpriv util-linux
chromium chromium
LIST
  # gcc alone is not enough: cgo needs the C library's headers and start files too.
  if command -v gcc >/dev/null 2>&1 && ! echo '#include <stdlib.h>' | gcc -E -x c - >/dev/null 2>&1; then
    printf 'libc6-dev '
  fi
}

packages=$(missing)
[ -n "$packages" ] || exit 0
case " $packages" in *" chromium "*) packages="$packages fonts-dejavu-core" ;; esac
case " $packages" in *" gcc "*) packages="$packages libc6-dev" ;; esac

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing: $packages"
  export DEBIAN_FRONTEND=noninteractive
  # An update that fails, for one broken source of many, need not keep the install from working.
  apt-get update -qq || true
  # shellcheck disable=SC2086 # a list of names
  apt-get install -y -qq --no-install-recommends $packages >/dev/null || true
  packages=$(missing)
  [ -n "$packages" ] || exit 0
fi
echo "missing, please install: $packages" >&2
case " $packages" in *" gcc "* | *" libc6-dev "*) echo "go test -race cannot run without a C compiler" >&2; exit 1 ;; esac
