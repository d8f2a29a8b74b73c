#!/usr/bin/env bash
# Checks deploy/ with the tools that are installed here, and names the tools that are missing.
# It builds trl, and needs no network and no root, though root can check more.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/bin/tools:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

check() { # NAME PROGRAM… -- COMMAND…: run it if the programs are there
  local name=$1 program
  shift
  while [ "$1" != -- ]; do
    program=$1
    shift
    command -v "$program" >/dev/null || { echo "deploy: $name: SKIPPED, no $program here"; return; }
  done
  shift
  # Not as a condition: there set -e would count for nothing.
  ("$@") >"$work/out" 2>&1 &
  if wait $!; then
    echo "deploy: $name: ok"
  else
    echo "deploy: $name: FAILED"
    sed 's/^/    /' "$work/out"
    failed=1
  fi
}

yaml() {
  python3 - deploy/compose.yaml deploy/prometheus/*.y*ml deploy/helm/trl/*.yaml <<'PY'
import sys, yaml
for path in sys.argv[1:]:
    list(yaml.safe_load_all(open(path)))
# What Prometheus asks for is a name that the service goes by; else it is told 421.
services = yaml.safe_load(open("deploy/compose.yaml"))["services"]
for job in yaml.safe_load(open("deploy/prometheus/prometheus.yml"))["scrape_configs"]:
    for target in (t for c in job["static_configs"] for t in c["targets"]):
        name = target.rpartition(":")[0]
        assert name in services[name]["environment"]["TRL_HOST"].split(","), target
PY
}

prometheus() {
  promtool check rules deploy/prometheus/alerts.yaml
  promtool check config --syntax-only deploy/prometheus/prometheus.yml
  (cd deploy/prometheus && promtool test rules alerts_test.yaml)
}

# The units as they are installed, but with a program that is there. systemd-analyze tells faults and exits with 0.
units() {
  local dir=$work/units
  mkdir -p "$dir/trl.service.d"
  sed "s|/usr/local/bin/trl|$PWD/bin/trl|; s|^User=.*|User=$(id -un)|" deploy/systemd/trl.service >"$dir/trl.service"
  cp deploy/systemd/trl.socket "$dir/"
  systemd-analyze verify --man=no "$dir/trl.service" "$dir/trl.socket" 2>&1 | tee "$work/verify"
  cp deploy/systemd/hardened.conf "$dir/trl.service.d/"
  systemd-analyze verify --man=no "$dir/trl.service" 2>&1 | tee -a "$work/verify"
  ! grep -q "$dir" "$work/verify" || return 1
  ! grep -q "trl\.\(service\|socket\):" "$work/verify" || return 1
}

# What docs/hardening.md says: the exposure (10 is a unit without any hardening), in tenths.
exposure() {
  local dir=$work/exposure
  mkdir -p "$dir"
  cp deploy/systemd/trl.service "$dir/"
  systemd-analyze security --offline=true --no-pager --threshold=86 "$dir/trl.service" | tail -n 1
  # A drop-in is not read offline: both in one file, which is what they are together.
  { cat deploy/systemd/trl.service; sed -n '/^\[Service\]/,$p' deploy/systemd/hardened.conf; } >"$dir/trl-hardened.service"
  systemd-analyze security --offline=true --no-pager --threshold=30 "$dir/trl-hardened.service" | tail -n 1
}

chart() {
  local render="helm template x deploy/helm/trl --kube-version 1.30.0"
  helm lint --quiet deploy/helm/trl
  $render >"$work/plain.yaml"
  $render --set tokensSecret=t,tlsSecret=c,serviceMonitor.enabled=true,autoscaling.enabled=true,audit.required=true \
    --set-json 'networkPolicy.egress=[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]}]' >"$work/full.yaml"
  $render --set audit.enabled=false,networkPolicy.enabled=false,podDisruptionBudget.enabled=false >"$work/bare.yaml"
  local cluster="$render --set replicas=3,cluster.enabled=true"
  $cluster --set cluster.secret=link,nats.enabled=true,cluster.labels.zone=a >"$work/cluster.yaml"
  $cluster --set tlsSecret=c,cluster.tlsSecret=pods,cluster.nats.url=tls://n:4222,cluster.nats.credsSecret=cr,cluster.nats.caSecret=ca >"$work/cluster-tls.yaml"
  ! $cluster --set nats.enabled=true 2>/dev/null || { echo "a cluster without a secret is rendered"; return 1; }
  ! $cluster --set cluster.secret=link,nats.enabled=true,tlsSecret=c 2>/dev/null || { echo "TLS beside NATS without TLS is rendered"; return 1; }
  [ "$(grep -c '^kind: StatefulSet$' "$work/cluster.yaml")" = 2 ]
  for kind in StatefulSet NetworkPolicy PodDisruptionBudget ServiceMonitor HorizontalPodAutoscaler; do
    grep -q "^kind: $kind$" "$work/full.yaml"
  done
  grep -q 'name: TRL_HOST, .*[",]x-trl\.default\.svc[",]' "$work/plain.yaml" # as NOTES.txt has them
  grep -q 'name: TRL_HOST, .*[",]\$(POD_NAME)\.x-trl-headless\.default\.svc[",]' "$work/plain.yaml"
  # Every flag that the chart gives is one of this program's.
  for flag in $(grep -ho -- '--[a-z-]*' "$work/full.yaml" "$work/plain.yaml" "$work"/cluster*.yaml | sort -u) $(sed -n 's/.*name: TRL_\([A-Z_]*\),.*/--\1/p' "$work/full.yaml" | tr A-Z_ a-z-); do
    bin/trl serve --help | grep -q -- "^ *$flag " || { [ "$flag" = --- ] || { echo "$flag is no flag of trl serve"; return 1; }; }
  done
}

# The root file system of the small image, with trl as the first process of a PID namespace, as in a container: it must
# serve, reap what sessions leave, and end in order.
container() {
  local root=$work/rootfs busybox user=() address pid outer
  busybox=$(command -v busybox)
  deploy/rootfs.sh "$root" bin/trl "$busybox"
  if ldd "$busybox" >/dev/null 2>&1; then # not Debian's busybox-static, which the image has
    ldd "$busybox" | grep -o '/[^ ]*' | while read -r lib; do install -D "$lib" "$root$lib"; done
  fi
  local ns=(unshare --mount --pid --fork --kill-child)
  if [ "$(id -u)" = 0 ]; then user=(--userspec=10001:10001); chmod 0755 "$work"; else ns+=(--map-root-user); fi
  # shellcheck disable=SC2016 # for the shell inside
  "${ns[@]}" sh -c 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && shift && exec chroot "$@"' sh "$root" \
    "${user[@]}" "$root" /bin/env -i PATH=/usr/local/bin:/bin HOME=/home/trl TRL_STATE_DIR=/var/lib/trl \
    /usr/local/bin/trl serve --listen 127.0.0.1:0 >"$work/log" 2>&1 &
  outer=$!
  for _ in $(seq 300); do
    [ ! -s "$root/var/lib/trl/address" ] || break
    kill -0 "$outer" 2>/dev/null || { cat "$work/log"; return 1; }
    sleep 0.1
  done
  address=$(cat "$root/var/lib/trl/address")
  pid=$(cat "/proc/$outer/task/$outer/children")
  export TRL_TOKEN_FILE=$root/var/lib/trl/operator-token
  bin/trl run --url "$address" -- 'cat /proc/1/cmdline | tr "\0" " "; id -u; (sleep 0.2 &); (setsid sleep 1000 &); sleep 0.5; echo' >"$work/said"
  cat "$work/said"
  grep -q '^/usr/local/bin/trl serve' "$work/said"
  [ "$(id -u)" != 0 ] || grep -q 10001 "$work/said"
  bin/trl run --url "$address" -- 'grep -l "^State:.Z" /proc/[0-9]*/status; true' >"$work/zombies"
  [ ! -s "$work/zombies" ] || { cat "$work/zombies"; echo "are not reaped"; return 1; }
  kill -TERM "$pid"
  wait "$outer" || { echo "ended with $?"; cat "$work/log"; return 1; }
}

[ -n "${TRL_BUILT:-}" ] || make --no-print-directory build >/dev/null
check "yaml" python3 -- yaml
check "shell scripts" shellcheck -- shellcheck -S warning deploy/*.sh
check "alerts" promtool -- prometheus
check "units" systemd-analyze -- units
check "exposure of the units" systemd-analyze -- exposure
check "chart" helm -- chart
if [ -n "${TRL_K8S_SCHEMAS:-}" ]; then # a directory or an address, as kubeconform -schema-location takes it
  check "chart against Kubernetes' schemas" helm kubeconform -- sh -c "kubeconform -strict -ignore-missing-schemas -schema-location '$TRL_K8S_SCHEMAS' $work/*.yaml"
fi
check "compose file" docker-compose -- docker-compose -f deploy/compose.yaml config --quiet
check "small image, as PID 1" busybox unshare chroot -- container
exit $failed
