#!/bin/sh
# Validates the OpenAPI and AsyncAPI documents of the server with validators from npm. Without npm it skips that.
set -eu
cd "$(dirname "$0")"
command -v npm >/dev/null 2>&1 || { echo "documents: SKIPPED, there is no npm"; exit 0; }

validators="@seriousme/openapi-schema-validator@2.11.0 @asyncapi/parser@3.6.3"
install() {
  [ "$(cat node_modules/versions 2>/dev/null)" != "$validators" ] || return 0
  # shellcheck disable=SC2086 # a list of packages
  npm install --no-audit --no-fund --ignore-scripts --no-package-lock --no-save --loglevel=error --prefix . $validators || return
  echo "$validators" >node_modules/versions
}
install || install || { echo "documents: SKIPPED, npm does not bring the validators"; exit 0; }

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
go test -count 1 -run 'TestDocumentsLeadSomewhere$' . -args -documents "$out" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
node check-documents.mjs "$out"
