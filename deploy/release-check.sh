#!/usr/bin/env bash
# Makes a trial release twice and expects the same bytes, from another folder and with another umask. Unpacks the package into a
# separate root, without root's rights, and runs its program. Checks that a release with missing inputs is refused.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v dpkg-deb >/dev/null || { echo "release: SKIPPED, no dpkg-deb here"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "release: $1" >&2; exit 1; }

# Each call lacks one required input.
refused() { # VERSION MAINTAINER
  ! env -u TRIAL VERSION="$1" MAINTAINER="$2" DIST="$work/none" deploy/release.sh >"$work/said" 2>&1 || fail "went through with '$1' and '$2'"
  grep -q 'is wanted' "$work/said" || { cat "$work/said"; fail "does not say what it misses with '$1' and '$2'"; }
}
refused "" "A <a@localhost>"
refused 0.1 "A <a@localhost>"
refused v0.1.0 ""
refused v0.1.0 "the maintainer"

export TRIAL=1 ARCHES=${ARCHES:-amd64} VERSION=v0.1.0
COMMIT=$(git describe --always --abbrev=12 --exclude='*' --dirty 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 1)
export COMMIT SOURCE_DATE_EPOCH
DIST=$work/one deploy/release.sh
mkdir "$work/copy"
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -C "$work/copy" -xf -
(umask 077; cd "$work/copy" && DIST=$work/two deploy/release.sh >/dev/null)
diff -r "$work/one" "$work/two" || fail "two builds differ"
(cd "$work/one" && sha256sum --quiet -c SHA256SUMS)
[ -s "$work/one/RELEASE-NOTES.md" ] || fail "no notes for $VERSION in CHANGELOG.md"
echo "release: two builds are the same bytes"

own=$(go env GOARCH)
deb=$(echo "$work"/one/trl_*_"$own".deb)
[ -e "$deb" ] || { echo "release: nothing to run for $own"; exit 0; }
dpkg-deb -x "$deb" "$work/root"
dpkg-deb -e "$deb" "$work/control"
(cd "$work/root" && md5sum --quiet -c "$work/control/md5sums")
for script in postinst prerm postrm; do sh -n "$work/control/$script"; done
grep -q '^ExecStart=/usr/bin/trl serve$' "$work/root/lib/systemd/system/trl.service"
"$work/root/usr/bin/trl" version | tee "$work/version"
grep -q "^trl $VERSION$" "$work/version" && grep -q "^commit *$COMMIT$" "$work/version" || fail "another version"
! command -v file >/dev/null || file "$work/root/usr/bin/trl" | grep -q 'statically linked, .*stripped' || fail "not static, or not stripped"
export TRL_STATE_DIR=$work/state TRL_LISTEN=127.0.0.1:0
"$work/root/usr/bin/trl" serve >"$work/log" 2>&1 &
pid=$!
for _ in $(seq 300); do
  ! grep -q 'trl: listening' "$work/log" || break
  kill -0 $pid 2>/dev/null || { cat "$work/log"; fail "does not serve"; }
  sleep 0.1
done
[ "$("$work/root/usr/bin/trl" run -- 'echo from the package')" = 'from the package' ] || fail "does not run a command"
kill -TERM $pid
wait $pid
echo "release: ok"
