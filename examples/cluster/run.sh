#!/usr/bin/env bash
# Starts NATS, three Outrigger processes with chat.py, and HAProxy in front of them, on free ports, until ^C.
#
# usage: run.sh [STATE]      STATE is a directory for the log files and the messages; by default a new one, removed at the end
# env:   OUTRIGGER (outrigger), PYTHON (python3) with the package nats-py, NODES (one two three) to start fewer processes
#
# Needs nats-server, haproxy, curl and openssl.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH=$PATH:/usr/sbin
OUTRIGGER=$(realpath "$(command -v "${OUTRIGGER:-outrigger}")")
# Not the target of the link, which may be outside of the virtual environment.
PYTHON=$(realpath -s "$(command -v "${PYTHON:-python3}")")
temporary=""
[ $# -gt 0 ] || temporary=$(mktemp -d)
state=$(realpath "${1:-$temporary}")
mkdir -p "$state"

stop() {
  trap - EXIT
  # shellcheck disable=SC2046
  kill $(jobs -p) 2>/dev/null || true
  wait
  [ -z "$temporary" ] || rm -rf "$temporary"
}
trap stop EXIT
trap 'exit 0' INT TERM

"$PYTHON" -c 'import nats' || { echo "run.sh: $PYTHON has no package nats-py" >&2; exit 1; }
# Ports below the range that the system takes for outgoing connections: each process must get its port again after a restart.
mapfile -t port < <("$PYTHON" - <<'PY'
import random, socket
sockets = []
for port in random.sample(range(20000, 32000), 200):
    try:
        sockets.append(socket.create_server(("127.0.0.1", port)))
    except OSError:
        continue
    if len(sockets) == 6:
        break
print(*(server.getsockname()[1] for server in sockets), sep="\n")
PY
)
umask 077
openssl rand -hex 32 >"$state/token"
# NATS would read a number if its token began with a digit.
cat >"$state/env" <<ENV
OUTRIGGER='$OUTRIGGER'
PYTHON='$PYTHON'
WEB=127.0.0.1:${port[0]}
STATS=127.0.0.1:${port[1]}
ONE=127.0.0.1:${port[2]}
TWO=127.0.0.1:${port[3]}
THREE=127.0.0.1:${port[4]}
NATS_LISTEN=127.0.0.1:${port[5]}
NATS_URL=nats://127.0.0.1:${port[5]}
NATS_STORE='$state/nats'
NATS_TOKEN=t$(openssl rand -hex 32)
ENV
set -a
# shellcheck source=/dev/null
source "$state/env"
set +a
nats-server -c "$here/nats.conf" </dev/null >"$state/nats.log" 2>&1 &
read -ra nodes <<<"${NODES:-one two three}"
for name in "${nodes[@]}"; do "$here/node.sh" "$state" "$name" </dev/null & done
haproxy -f "$here/haproxy.cfg" </dev/null >"$state/haproxy.log" 2>&1 &
for name in "${nodes[@]}"; do "$here/wait_up.sh" "$state" "$name"; done
echo "state in $state"
echo "members connect to ws://$WEB/rooms?token=$(cat "$state/token")"
wait
