#!/usr/bin/env bash
# Runs the examples that no other test runs: chat.rs, editor.py, shared_agent.py and mcp.py.
#
# env:   OUTRIGGER, and PYTHON with the package websockets
set -euo pipefail
cd "$(dirname "$0")/../.."
for example in editor shared_agent mcp; do
  timeout 60 "$PYTHON" "examples/$example.py" | sed 's/^/    /'
  echo "  examples/$example.py ok"
done

cargo build --release --locked --quiet --example chat
out=$(mktemp)
target/release/examples/chat 0 >"$out" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$out"' EXIT
deadline=$((SECONDS + 30))
until grep -q ws:// "$out"; do
  kill -0 "$server" && [ "$SECONDS" -lt "$deadline" ] || exit 1
  sleep 0.05
done
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
kill "$server"
wait "$server"
echo "  examples/chat.rs ok"
