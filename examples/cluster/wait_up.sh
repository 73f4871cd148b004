#!/usr/bin/env bash
# Waits until HAProxy sends clients to a process.
#
# usage: wait_up.sh STATE one|two|three
set -euo pipefail
# shellcheck source=/dev/null
source "$1/env"
listen=${2^^}
for _ in {1..600}; do
  if curl -sf -o /dev/null "http://${!listen}/readyz" &&
    [ "$(curl -s "http://$STATS/;csv" | awk -F, -v name="$2" '$1 == "outrigger" && $2 == name { print $18 }')" = UP ]; then
    exit 0
  fi
  sleep 0.1
done
echo "$2 is not up; the end of its log:" >&2
tail -n 5 "$1/$2.log" >&2
exit 1
