// npm `ws` against `outrigger echo`.
const assert = require("node:assert/strict");
const { once } = require("node:events");
const WebSocket = require("ws");
const { start } = require("./server.js");

async function main() {
  const server = await start("echo", "--max-message", "4MiB");
  const open = async (options = {}) => {
    const socket = new WebSocket(server.url, options);
    await once(socket, "open");
    return socket;
  };

  const socket = await open({ perMessageDeflate: true }); // which is declined
  for (const message of ["", "hello", "κόσμε 😀".repeat(10_000), Buffer.alloc(0), Buffer.alloc(3 << 20, 7)]) {
    socket.send(message);
    const [data, binary] = await once(socket, "message");
    assert.equal(binary, Buffer.isBuffer(message));
    assert.deepEqual(data, Buffer.from(message));
  }
  socket.send("in ", { fin: false });
  socket.ping("between");
  socket.send("pieces", { fin: true });
  const [[pong], [data]] = await Promise.all([once(socket, "pong"), once(socket, "message")]);
  assert.equal(pong.toString(), "between");
  assert.equal(data.toString(), "in pieces");
  socket.close(4000, "bye");
  assert.deepEqual((await once(socket, "close"))[0], 4000);
  console.log("  messages ok");

  const large = await open();
  large.send(Buffer.alloc((4 << 20) + 1));
  const [code, reason] = await once(large, "close");
  assert.deepEqual([code, reason.toString()], [1009, "Message too big"]);
  console.log("  limit ok");

  const sockets = await Promise.all(Array.from({ length: 200 }, () => open()));
  await Promise.all(sockets.map(async (socket, number) => {
    for (let round = 0; round < 20; round++) {
      socket.send(`${number}/${round}`);
      assert.equal((await once(socket, "message"))[0].toString(), `${number}/${round}`);
    }
  }));
  const closed = sockets.map((socket) => once(socket, "close"));
  await server.stop();
  for (const [code] of await Promise.all(closed)) assert.equal(code, 1001);
  console.log("  many ok");
}

main().catch((error) => { console.error(error); process.exit(1); });
