#!/usr/bin/env bash
# Runs the Autobahn test suite against `outrigger echo`. Every case must be OK or INFORMATIONAL, and every close clean.
#
# usage: tests/interop/autobahn/run.sh [WSTEST]      WSTEST is the suite's command; by default $WSTEST, ../shared/autobahn/wstest
#                                            or wstest from PATH, whichever exists first
# env:   OUTRIGGER=target/release/outrigger  the program to test
#        CASES='1.* 2.*'                     only these; by default all except compression
#        OPTIONS=--deflate                   more options; CASES='12.* 13.*' need this one
#        TLS=1                               over wss, with a self-signed certificate
#        REPORT=FILE                         a copy of the suite's report, index.json
set -euo pipefail
cd "$(dirname "$0")/../../.."
outrigger=${OUTRIGGER:-target/release/outrigger}
wstest=${1:-${WSTEST:-}}
if [ -z "$wstest" ]; then
  if [ -x ../shared/autobahn/wstest ]; then wstest=../shared/autobahn/wstest; else wstest=$(command -v wstest); fi
fi
work=$(mktemp -d)
"$outrigger" echo --listen 127.0.0.1:0 --log warn ${TLS:+--tls-self-signed} ${OPTIONS:-} >"$work/out" 2>"$work/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
deadline=$((SECONDS + 30))
until grep -q listening "$work/out"; do
  kill -0 "$server" && [ "$SECONDS" -lt "$deadline" ] || { cat "$work/log"; exit 1; }
  sleep 0.05
done
url=$(sed -n 's|.*\(wss\{0,1\}://[^/]*/\).*|\1|p' "$work/out")
python3 - "$work" "$url" <<'PY'
import json, os, sys
work, url = sys.argv[1:]
spec = json.load(open("tests/interop/autobahn/spec.json"))
spec["outdir"], spec["servers"][0]["url"] = f"{work}/reports", url
if os.environ.get("CASES"):
    spec["cases"] = os.environ["CASES"].split()
json.dump(spec, open(f"{work}/spec.json", "w"))
PY
(wstest=$(realpath "$wstest") && cd "$work" && "$wstest" -m fuzzingclient -s spec.json >wstest.log 2>&1) || { tail -20 "$work/wstest.log"; exit 1; }
[ -z "${REPORT:-}" ] || cp "$work/reports/index.json" "$REPORT"
python3 tests/interop/autobahn/check.py "$work/reports/index.json" ${CASES:+--partial}
