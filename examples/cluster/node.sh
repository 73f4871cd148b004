#!/usr/bin/env bash
# Runs one Outrigger process of the cluster, and starts it again whenever it ends, as a service manager does. run.sh starts it.
#
# usage: node.sh STATE one|two|three
set -euo pipefail
state=$1 name=$2
here=$(cd "$(dirname "$0")" && pwd)
set -a
# shellcheck source=/dev/null
source "$state/env"
set +a
export NODE=$name
listen=${name^^}
trap 'kill "$pid" 2>/dev/null; wait "$pid"; exit 0' TERM
while true; do
  "$OUTRIGGER" app --path /rooms --listen "${!listen}" --token-file "$state/token" --trusted-proxy 127.0.0.1 \
    --affinity-cookie "node=$name" --node "$name" --max-message 16KiB --restart -- \
    "$PYTHON" "$here/chat.py" >>"$state/$name.out" 2>>"$state/$name.log" &
  pid=$!
  echo "$pid" >"$state/$name.new"
  mv "$state/$name.new" "$state/$name.pid"
  # The shell reports a signal that has ended the process.
  wait "$pid" 2>>"$state/$name.log" || true
  sleep 0.2
done
