#!/usr/bin/env bash
# A rolling restart: for one process after the other, sends SIGTERM, waits until it has ended and its successor is ready, and
# until HAProxy sends clients to it.
#
# usage: restart.sh STATE [one|two|three...]      STATE is the directory that run.sh prints
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
state=$1
shift
[ $# -gt 0 ] || set -- one two three
for name; do
  pid=$(cat "$state/$name.pid")
  kill -TERM "$pid"
  # node.sh starts the successor when the process has ended.
  while [ "$(cat "$state/$name.pid")" = "$pid" ]; do sleep 0.1; done
  "$here/wait_up.sh" "$state" "$name"
  echo "$name was restarted"
done
