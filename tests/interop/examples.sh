#!/usr/bin/env bash
# Runs the examples that no other test runs: chat.rs, tokio.rs, editor.py, shared_agent.py and mcp.py.
#
# env:   OUTRIGGER, and PYTHON with the package websockets
set -euo pipefail
cd "$(dirname "$0")/../.."
for example in editor shared_agent mcp; do
  timeout 60 "$PYTHON" "examples/$example.py" | sed 's/^/    /'
  echo "  examples/$example.py ok"
done

# The unoptimized ones, which `cargo test` has built.
cargo build --locked --quiet --example chat --example tokio
out=$(mktemp)
server=
trap 'kill "$server" 2>/dev/null || true; rm -f "$out"' EXIT
# Starts an example, and waits until it has printed this many addresses.
start() { # COUNT COMMAND...
  local count=$1 deadline=$((SECONDS + 30))
  shift
  "$@" >"$out" &
  server=$!
  until [ "$(grep -c ws:// "$out")" = "$count" ]; do
    kill -0 "$server" && [ "$SECONDS" -lt "$deadline" ] || exit 1
    sleep 0.05
  done
}
stop() {
  kill "-$1" "$server"
  wait "$server"
}

start 1 target/debug/examples/chat 0
timeout 60 "$PYTHON" - "$(cat "$out")" <<'PY'
import asyncio, sys, websockets

async def main(url):
    async with websockets.connect(url) as ann, websockets.connect(url) as bob:
        for socket, name in (ann, "Ann"), (bob, "Bob"):
            assert await socket.recv() == "What is your name?"
            await socket.send(name)
            assert (await socket.recv()).startswith(f"{name} is here")
        assert await ann.recv() == "Bob is here, one of 2."
        await bob.send("hello")
        assert await ann.recv() == await bob.recv() == "Bob: hello"
        await bob.close()
        assert await ann.recv() == "Bob has left."

asyncio.run(main(sys.argv[1]))
PY
stop TERM
echo "  examples/chat.rs ok"

# A shell starts background programs with SIGINT ignored, but tokio installs a handler.
start 2 target/debug/examples/tokio 0 0
# shellcheck disable=SC2046
timeout 60 "$PYTHON" - $(sed 's/.* //' "$out") <<'PY'
import asyncio, sys, websockets

async def main(server, task):
    for url in server, task:
        async with websockets.connect(url) as socket:
            # The task of tokio compresses.
            assert len(socket.protocol.extensions) == (url == task), (url, socket.protocol.extensions)
            for message in "hello", "x" * 100_000, b"bytes":
                await socket.send(message)
                assert await socket.recv() == message

asyncio.run(main(*sys.argv[1:]))
PY
stop INT
echo "  examples/tokio.rs ok"
