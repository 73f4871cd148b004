#!/usr/bin/env bash
# Uses a terminal through nginx and through HAProxy, with the configurations of examples/deploy on free ports.
#
# env:   OUTRIGGER, and PYTHON with the package websockets; with TLS_OPTIONS and TLS_CERTIFICATE, the proxies connect over TLS
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
mapfile -t port < <(python3 - <<'PY'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(server.getsockname()[1] for server in sockets), sep="\n")
PY
)
for file in nginx.conf haproxy.cfg; do
  sed "s/127.0.0.1:7070/127.0.0.1:${port[0]}/; s/127.0.0.1:8080/127.0.0.1:${port[1]}/; s/127.0.0.1:8081/127.0.0.1:${port[2]}/; s|^pid .*|pid $work/nginx.pid;|" \
    "examples/deploy/$file" >"$work/$file"
done
if [ -n "${TLS_CERTIFICATE:-}" ]; then
  verify="proxy_ssl_verify on; proxy_ssl_name localhost; proxy_ssl_trusted_certificate $TLS_CERTIFICATE"
  sed -i "s|proxy_pass http://outrigger;|proxy_pass https://outrigger; $verify;|" "$work/nginx.conf"
  sed -i "s|server one [^ ]*|& ssl verify required ca-file $TLS_CERTIFICATE|" "$work/haproxy.cfg"
  grep -q https: "$work/nginx.conf" && grep -q ca-file "$work/haproxy.cfg"
fi
# shellcheck disable=SC2086
"$OUTRIGGER" terminal --listen "127.0.0.1:${port[0]}" --no-auth --log warn ${TLS_OPTIONS:-} -- sh >"$work/out" &
"$(PATH=$PATH:/usr/sbin command -v nginx)" -c "$work/nginx.conf" 2>"$work/nginx.log" &
"$(PATH=$PATH:/usr/sbin command -v haproxy)" -f "$work/haproxy.cfg" >"$work/haproxy.log" 2>&1 &
timeout 60 "$PYTHON" - "${port[1]}" "${port[2]}" <<'PY'
import asyncio, json, sys, websockets

async def main(port):
    # The proxy may not listen yet, or may not have found the server.
    while True:
        try:
            socket = await websockets.connect(f"ws://127.0.0.1:{port}/terminal?rows=20&cols=70")
            break
        except (OSError, websockets.InvalidStatus, websockets.InvalidMessage):
            await asyncio.sleep(0.1)
    await socket.send(b"stty size; echo $((6*7)); exit 3\n")
    shown, told = b"", []
    try:
        while True:
            message = await socket.recv()
            if isinstance(message, str):
                event = json.loads(message)
                if event["type"] not in ("role", "size"):
                    told.append(event)
            else:
                shown += message
    except websockets.ConnectionClosed as closed:
        assert closed.rcvd.code == 1000, closed
    assert b"20 70\r\n42\r\n" in shown and told == [{"type": "exit", "exitCode": 3}], (shown, told)

for name, port in zip(["nginx", "HAProxy"], sys.argv[1:]):
    asyncio.run(main(port))
    print(f"  through {name} ok")
PY
