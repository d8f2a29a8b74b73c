#!/usr/bin/env bash
# Makes a release in dist/: docs/releasing.md. Its content does not depend on when, where or by whom it is built, so two builds of a
# commit have the same bytes.
#   VERSION=v0.1.0 MAINTAINER='Name <address>' deploy/release.sh
# For a trial: TRIAL=1, which also accepts a tree with changes; ARCHES=amd64; DIST=a directory.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C TZ=UTC
fail() { echo "release: $1" >&2; exit 1; }

version=${VERSION:-} maintainer=${MAINTAINER:-} arches=${ARCHES:-amd64 arm64} dist=${DIST:-$PWD/dist}
if [ -n "${TRIAL:-}" ]; then
  version=${version:-v0.0.0-trial} maintainer=${maintainer:-trial <nobody@localhost>}
fi
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?$ ]] || fail "VERSION=v1.2.3 is wanted, not '$version'"
[[ $maintainer =~ ^[^\<]+\ \<[^@\ ]+@[^@\ ]+\>$ ]] || fail "MAINTAINER='Name <address>' is wanted: reports of vulnerabilities go there (SECURITY.md)"
for tool in dpkg-deb gzip tar sha256sum; do command -v "$tool" >/dev/null || fail "no $tool here"; done
commit=${COMMIT:-$(git describe --always --abbrev=12 --exclude='*' --dirty)}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# The section of CHANGELOG.md, without its heading.
notes=$(awk -v v="$version" '/^## / { on = ($2 == v); next } on' CHANGELOG.md)
if [ -z "${TRIAL:-}" ]; then
  [ -z "$(git status --porcelain)" ] || fail "the tree has changes that are not committed"
  [ -n "$notes" ] || fail "CHANGELOG.md has no section '## $version (date)'"
  [ "$(git tag --points-at HEAD --list "$version")" = "$version" ] || fail "the commit has no tag $version: git tag -a $version"
  grep -q "^appVersion: $version$" deploy/helm/trl/Chart.yaml || fail "deploy/helm/trl/Chart.yaml: appVersion is not $version"
fi

rm -rf "$dist"
mkdir -p "$dist"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

put() { install -D -m "$1" "$2" "$3"; } # MODE FILE PLACE
packed() { gzip -9n >"$1"; chmod 644 "$1"; }
dated() { find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }

# The text that every package has: where to report, and the licences of what is linked.
{ cat SECURITY.md; printf '\n## The address for this release\n\n%s\n' "$maintainer"; } >"$work/SECURITY.md"
{
  echo "trl contains these modules. Their licences:"
  go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/trl | sort -u | while read -r path v dir; do
    printf '\n==== %s %s\n\n' "$path" "$v"
    find "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort | xargs -r -d '\n' cat
  done
  printf '\n==== Go %s\n\n' "$(go env GOVERSION)"
  cat "$(go env GOROOT)/LICENSE"
} >"$work/THIRD-PARTY.txt"

for arch in $arches; do
  name=trl-$version-linux-$arch
  bin=$dist/$name
  GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X trl/internal/buildinfo.version=$version -X trl/internal/buildinfo.commit=$commit" -o "$bin" ./cmd/trl
  go run ./internal/sbom "$bin" "$version" "$SOURCE_DATE_EPOCH" >"$bin.spdx.json"

  # The tarball: the program, the documents, the units.
  tree=$work/$name
  put 755 "$bin" "$tree/trl"
  for file in LICENSE README.md CHANGELOG.md deploy/systemd/*; do put 644 "$file" "$tree/$file"; done
  for file in docs/*.md protocol/PROTOCOL.md; do put 644 "$file" "$tree/$file"; done
  put 644 "$work/SECURITY.md" "$tree/SECURITY.md"
  put 644 "$work/THIRD-PARTY.txt" "$tree/THIRD-PARTY.txt"
  tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" | packed "$bin.tar.gz"

  # The Debian package: /usr/bin instead of the unit's /usr/local/bin, the rest as in deploy/systemd.
  root=$work/deb-$arch doc=$work/deb-$arch/usr/share/doc/trl
  put 755 "$bin" "$root/usr/bin/trl"
  for unit in trl.service trl.socket; do
    mkdir -p "$root/lib/systemd/system"
    sed -e '/^# \(install\|useradd\) /d' -e 's|/usr/local/bin/trl|/usr/bin/trl|' "deploy/systemd/$unit" >"$root/lib/systemd/system/$unit"
  done
  put 644 deploy/systemd/hardened.conf "$doc/examples/hardened.conf"
  put 644 deploy/debian/default "$root/etc/default/trl"
  mkdir -p "$root/usr/share/man/man1"
  packed "$root/usr/share/man/man1/trl.1.gz" <deploy/debian/trl.1
  for file in README.md docs/*.md protocol/PROTOCOL.md "$work/SECURITY.md"; do put 644 "$file" "$doc/${file##*/}"; done
  packed "$doc/THIRD-PARTY.txt.gz" <"$work/THIRD-PARTY.txt"
  packed "$doc/changelog.gz" <CHANGELOG.md
  debian=$(sed 's/^v//; s/-/~/' <<<"$version")-1
  printf 'trl (%s) unstable; urgency=medium\n\n  * Release %s: changelog.gz.\n\n -- %s  %s\n' "$debian" "$version" "$maintainer" "$(date -R -d "@$SOURCE_DATE_EPOCH")" | packed "$doc/changelog.Debian.gz"
  cat >"$doc/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: trl
Comment: The modules that are linked are in THIRD-PARTY.txt.gz, each with its licence.

Files: *
Copyright: the authors of trl
License: Apache-2.0
 On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.
EOF
  mkdir -p "$root/DEBIAN"
  for script in postinst prerm postrm; do put 755 "deploy/debian/$script" "$root/DEBIAN/$script"; done
  echo /etc/default/trl >"$root/DEBIAN/conffiles"
  (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs -d '\n' md5sum) >"$root/DEBIAN/md5sums"
  cat >"$root/DEBIAN/control" <<EOF
Package: trl
Version: $debian
Architecture: $arch
Maintainer: $maintainer
Section: net
Priority: optional
Depends: passwd
Recommends: bash
Suggests: bubblewrap
Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)
Description: persistent shell sessions over a WebSocket
 A gateway through which AI agents and browsers get real shells: sessions that
 keep their state from one command to the next, survive their commands, and
 outlive a dropped connection and the gateway itself.
EOF
  chmod 644 "$root/DEBIAN/"{control,conffiles,md5sums} "$doc/copyright" "$root/lib/systemd/system/"*
  dated "$root"
  dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/trl_${debian}_$arch.deb" >/dev/null
done
printf '%s\n' "$notes" | sed '/./,$!d' >"$dist/RELEASE-NOTES.md"
(cd "$dist" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS && chmod 644 SHA256SUMS)
(cd "$dist" && ls -l)
