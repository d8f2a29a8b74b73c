#!/bin/sh
# Makes the smallest root file system in which trl is useful: trl, busybox's shell and tools, a user, a home.
#   deploy/rootfs.sh DIR TRL BUSYBOX       both statically linked
set -eu
[ $# -eq 3 ] || { echo "usage: $0 DIR TRL BUSYBOX" >&2; exit 2; }
root=$1 trl=$2 busybox=$3
for dir in bin usr/bin usr/local/bin etc proc dev sys var/lib run root; do mkdir -p "$root/$dir"; done
mkdir -p "$root/tmp" && chmod 1777 "$root/tmp"
install -m 0755 "$trl" "$root/usr/local/bin/trl"
install -m 0755 "$busybox" "$root/bin/busybox"
for name in $("$busybox" --list); do
  [ "$name" = busybox ] || ln -sf busybox "$root/bin/$name"
done
printf 'root:x:0:0:root:/root:/bin/sh\ntrl:x:10001:10001:trl:/home/trl:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$root/etc/passwd"
printf 'root:x:0:\ntrl:x:10001:\nnogroup:x:65534:\n' >"$root/etc/group"
printf '/bin/sh\n/bin/ash\n' >"$root/etc/shells"
mkdir -p "$root/home/trl" "$root/var/lib/trl"
chmod 0700 "$root/var/lib/trl"
if [ "$(id -u)" = 0 ]; then chown 10001:10001 "$root/home/trl" "$root/var/lib/trl"; fi
