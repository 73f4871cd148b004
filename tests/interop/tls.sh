#!/usr/bin/env bash
# The program over TLS with other people's clients: Python `websockets`, npm `ws`, Chromium over wss and https, curl, nginx and
# HAProxy that encrypt again, `openssl s_client` with a client certificate, and the scanner sslyze.
#
# usage: tests/interop/tls.sh clients|others     clients: curl, websockets, ws and openssl; others: sslyze, Chromium and the proxies
# env:   OUTRIGGER; TOOLS with npm's packages in node_modules, PYTHON with the package websockets, and SSLYZE for others
set -euo pipefail
part=$1
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
export NODE_PATH=$TOOLS/node_modules

# Starts a server in the background and sets `address` to its host and port.
serve() {
  : >"$work/out"
  "$OUTRIGGER" echo --listen 127.0.0.1:0 --log warn "$@" >"$work/out" 2>"$work/log" &
  server=$!
  local deadline=$((SECONDS + 30))
  until grep -q listening "$work/out"; do
    kill -0 "$server" && [ "$SECONDS" -lt "$deadline" ] || { cat "$work/log"; exit 1; }
    sleep 0.05
  done
  address=$(sed -n 's|.*wss://\([^/]*\)/.*|\1|p' "$work/out")
}
stop() {
  kill "$server"
  wait "$server"
}

# A self-signed certificate of the program, which every part uses again.
serve --tls-self-signed --tls-dir "$work/own"
printed=$(sed -n 's/.*SHA-256 fingerprint //p' "$work/out")
certificate=$work/certificate.pem
openssl s_client -connect "$address" </dev/null 2>/dev/null | openssl x509 -out "$certificate"
seen=$(openssl x509 -in "$certificate" -noout -fingerprint -sha256 | sed 's/.*=//')
[ "$printed" = "$seen" ] || { echo "the fingerprint is $seen, not $printed"; exit 1; }
echo "  fingerprint ok"

export TLS_OPTIONS="--tls-self-signed --tls-dir $work/own"
TLS_SPKI=$(openssl x509 -in "$certificate" -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64)
export TLS_SPKI

if [ "$part" = others ]; then
  "$PYTHON" tests/interop/sslyze.py "$SSLYZE" "$address" "$certificate"
  stop
  echo "  Chromium over wss and https:"
  export NODE_EXTRA_CA_CERTS=$certificate
  node tests/interop/browser.js
  node tests/interop/web_console.js
  echo "  proxies that encrypt again:"
  TLS_CERTIFICATE=$certificate tests/interop/deploy.sh
  exit
fi

[ "$(curl -sS --cacert "$certificate" "https://$address/healthz")" = '{"status":"ok"}' ]
[ "$(curl -sS --cacert "$certificate" --tls-max 1.2 "https://$address/healthz" -w '%{http_code} %{http_version}')" = '{"status":"ok"}200 1.1' ]
[ "$(curl -sS "http://$address/healthz" -o /dev/null -w '%{http_code}')" = 400 ]
if curl -sS "https://$address/healthz" >/dev/null 2>&1; then
  echo "curl trusts a self-signed certificate"
  exit 1
fi
echo "  curl ok"
if curl --version | grep -qw wss; then
  curl -sS --cacert "$certificate" --max-time 2 "wss://$address/" -o /dev/null -w '%{http_code}' | grep -q 101
  echo "  curl over wss ok"
fi
stop
echo "  Python websockets over wss:"
SSL_CERT_FILE=$certificate "$PYTHON" tests/interop/python_client.py
echo "  npm ws over wss:"
NODE_EXTRA_CA_CERTS=$certificate node tests/interop/node_client.js

# Client certificates, signed by an authority of ours.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=our authority" -days 2 \
  -keyout "$work/ca.key" -out "$work/ca.pem" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=laptop" -keyout "$work/laptop.key" -out "$work/request" 2>/dev/null
openssl x509 -req -in "$work/request" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial -days 2 -out "$work/laptop.pem" \
  -extfile <(echo "subjectAltName=DNS:laptop.example") 2>/dev/null
serve --tls-self-signed --tls-dir "$work/own" --tls-client-ca "$work/ca.pem" --tls-client-auth --log info
mine=(--cacert "$certificate" --cert "$work/laptop.pem" --key "$work/laptop.key")
[ "$(curl -sS "${mine[@]}" "https://$address/healthz")" = '{"status":"ok"}' ]
if curl -sS --cacert "$certificate" "https://$address/healthz" >/dev/null 2>&1; then
  echo "a client without a certificate was served"
  exit 1
fi
for version in -tls1_2 -tls1_3; do
  # An echo, and CLOSE.
  {
    printf 'GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n'
    printf 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n'
    printf '\x81\x85\0\0\0\0hello\x88\x82\0\0\0\0\x03\xe8'
  } | timeout 20 openssl s_client "$version" -quiet -verify_return_error -CAfile "$certificate" -connect "$address" \
    -cert "$work/laptop.pem" -key "$work/laptop.key" 2>/dev/null >"$work/said"
  grep -q '101 Switching Protocols' "$work/said" && grep -qa hello "$work/said"
done
grep -q 'cert:laptop.example' "$work/log" || { cat "$work/log"; exit 1; }
stop
echo "  client certificates with curl and openssl ok"
