#!/usr/bin/env bash
# Runs the Autobahn test suite's fuzzing server against the client role: examples/autobahn_client.rs sends each message back.
# Every case must be OK or INFORMATIONAL, and every close clean.
#
# usage: tests/interop/autobahn/client.sh [WSTEST]   WSTEST as for run.sh
# env:   CASES='1.* 2.*'                     only these; by default all except compression (12.* and 13.*)
#        TLS=1                               over wss, with a certificate that openssl makes
#        REPORT=FILE                         a copy of the suite's report, index.json
set -euo pipefail
cd "$(dirname "$0")/../../.."
wstest=${1:-${WSTEST:-}}
if [ -z "$wstest" ]; then
  if [ -x ../shared/autobahn/wstest ]; then wstest=../shared/autobahn/wstest; else wstest=$(command -v wstest); fi
fi
wstest=$(realpath "$wstest")
# The unoptimized one, which `cargo test` has built.
cargo build --quiet --locked --example autobahn_client
work=$(mktemp -d)
scheme=ws certificate=()
if [ -n "${TLS:-}" ]; then
  scheme=wss certificate=("$work/certificate.pem")
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$work/key.pem" -out "$work/certificate.pem" -days 2 -subj /CN=localhost \
    -addext subjectAltName=IP:127.0.0.1 2>"$work/openssl.log" || { cat "$work/openssl.log"; exit 1; }
fi
port=$(python3 - "$work" "$scheme" <<'PY'
import json, os, socket, sys
work, scheme = sys.argv[1:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
cases = os.environ.get("CASES") or " ".join(json.load(open("tests/interop/autobahn/spec.json"))["cases"])
spec = {"url": f"{scheme}://127.0.0.1:{port}", "outdir": f"{work}/reports", "cases": cases.split(),
        "exclude-cases": [], "exclude-agent-cases": {}}
if scheme == "wss":
    spec |= {"key": f"{work}/key.pem", "cert": f"{work}/certificate.pem"}
json.dump(spec, open(f"{work}/spec.json", "w"))
print(port)
PY
)
# The suite runs in a process group of its own, because it may start other processes. Without -u 0, it also listens on port 8080.
setsid bash -c 'cd "$0" && exec "$1" -m fuzzingserver -s spec.json -u 0' "$work" "$wstest" >"$work/log" 2>&1 &
server=$!
trap 'kill -- -"$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
deadline=$((SECONDS + 120))
until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
  kill -0 "$server" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ] || { tail -20 "$work/log"; exit 1; }
  sleep 0.2
done
target/debug/examples/autobahn_client "$scheme://127.0.0.1:$port" "${certificate[@]}" >"$work/out" || { tail -5 "$work/out"; exit 1; }
[ -z "${REPORT:-}" ] || cp "$work/reports/index.json" "$REPORT"
python3 tests/interop/autobahn/check.py "$work/reports/index.json" ${CASES:+--partial}
