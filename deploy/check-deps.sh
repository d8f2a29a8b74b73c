#!/bin/sh
# Downloads tools for deploy/check.sh that are not installed into bin/tools, where check.sh finds them. It installs nothing on
# the machine. It skips a tool that it cannot get, and check.sh says so.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/bin/tools
mkdir -p "$tools"
PATH=$tools:$PATH

debian() { # COMMAND PACKAGE: the command out of Debian's package
  command -v "$1" >/dev/null 2>&1 && return
  command -v apt-get >/dev/null 2>&1 || return
  (
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    chmod 755 "$dir" # apt downloads as a user of its own
    cd "$dir"
    apt-get download -qq "$2" >/dev/null 2>&1 || { apt-get update -qq && apt-get download -qq "$2"; } >/dev/null 2>&1 || exit 0
    dpkg -x ./*.deb .
    cp "usr/bin/$1" "$tools/"
  )
}

debian shellcheck shellcheck
debian promtool prometheus
command -v helm >/dev/null 2>&1 || GOBIN=$tools go install helm.sh/helm/v3/cmd/helm@v3.19.0 || true
