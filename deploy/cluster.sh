#!/usr/bin/env bash
# Three nats-servers and three nodes of trl on loopback, to try a cluster on one machine. It prints the page of each node. Ctrl-C ends all of them and
# removes what they stored. With arguments it runs these as a command instead of waiting, with TRL_URL and TRL_TOKEN set, and ends with it.
set -euo pipefail
cd "$(dirname "$0")/.."
trl=${TRL_TEST_PROGRAM:-$PWD/bin/trl} nats=${TRL_TEST_NATS:-$PWD/bin/nats-server}
[ -x "$trl" ] && [ -x "$nats" ] || { echo "run: make cluster"; exit 1; }

work=$(mktemp -d)
pids=()
declare -A name # of each pid
end() {
  trap '' INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

free_port() { # a port on which nobody listens, and that no other call has chosen
  local port
  while port=$((20000 + RANDOM % 12000)); [ -e "$work/port-$port" ] || (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  : >"$work/port-$port"
  echo "$port"
}

routes=() servers=() clients=() peers=()
for i in 0 1 2; do
  clients[i]=$(free_port) peers[i]=$(free_port)
  servers[i]=nats://127.0.0.1:${clients[i]} routes[i]=nats://127.0.0.1:${peers[i]}
done
join() { local IFS=,; echo "$*"; }
for i in 0 1 2; do
  cat >"$work/nats$i.conf" <<CONF
listen: 127.0.0.1:${clients[i]}
server_name: nats$i
jetstream { store_dir: "$work/nats$i", sync_interval: always }
cluster { name: trl, listen: "127.0.0.1:${peers[i]}", routes: [$(join "${routes[@]}")] }
CONF
  "$nats" -c "$work/nats$i.conf" >"$work/nats$i.log" 2>&1 &
  pids+=($!) name[$!]=nats$i
done

umask 077
head -c 32 /dev/urandom | base64 >"$work/secret"
token=$(head -c 24 /dev/urandom | base64 | tr '+/' '-_')
echo "$token me admin" >"$work/tokens"
for node in n1 n2 n3; do
  mkdir -p "$work/$node"
  # Nothing of the caller's environment is for these gateways.
  env -u TRL_URL -u TRL_TOKEN -u TRL_STATE_DIR "$trl" serve --listen 127.0.0.1:0 --state-dir "$work/$node" --token-file "$work/tokens" \
    --cluster "$(join "${servers[@]}")" --cluster-listen 127.0.0.1:0 --cluster-secret "$work/secret" \
    --node "$node" --node-label "zone=z${node#n}" >"$work/$node.out" 2>"$work/$node.log" &
  pids+=($!) name[$!]=$node
done

declare -A url
for node in n1 n2 n3; do
  for _ in $(seq 300); do
    url[$node]=$(sed -n 's/^trl: listening on //p' "$work/$node.out")
    [ -z "${url[$node]}" ] || break
    sleep 0.1
  done
  [ -n "${url[$node]}" ] || { echo "$node does not start:"; cat "$work/$node.log"; exit 1; }
done
export TRL_URL=${url[n1]} TRL_TOKEN=$token
for _ in $(seq 300); do
  known=$("$trl" nodes 2>"$work/said") && [ "$(grep -c ' ready ' <<<"$known")" = 3 ] && [ ! -s "$work/said" ] && break
  sleep 0.1
done

if [ $# -gt 0 ]; then
  "$@"
  exit
fi
for node in n1 n2 n3; do echo "$node  ${url[$node]}/login#token=$token"; done
cat <<TEXT

In another terminal:
  export TRL_URL=${url[n1]} TRL_TOKEN=$token
  bin/trl nodes
  bin/trl run --session here --node n3 -- 'echo in \$PWD; x=1'     # made on n3, over n1
  TRL_URL=${url[n2]} bin/trl run --session here -- 'echo x is \$x'   # found over n2

Ctrl-C ends everything.
TEXT
# Whoever tries what happens without one of them may end it: the others go on.
while [ ${#pids[@]} -gt 0 ]; do
  { wait -n -p ended "${pids[@]}" || true; } 2>/dev/null # bash says itself which are killed
  echo "${name[$ended]} has ended; the last lines of its log:"
  tail -n 3 "$work/${name[$ended]}.log"
  left=()
  for pid in "${pids[@]}"; do [ "$pid" = "$ended" ] || left+=("$pid"); done
  pids=("${left[@]}")
done
