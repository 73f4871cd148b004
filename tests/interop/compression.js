// npm `ws` against `outrigger echo --deflate`, with every combination of parameters.
const assert = require("node:assert/strict");
const { once } = require("node:events");
const WebSocket = require("ws");
const { start } = require("./server.js");

const AGREEMENTS = [
  {},
  { serverNoContextTakeover: true },
  { clientNoContextTakeover: true },
  { serverNoContextTakeover: true, clientNoContextTakeover: true },
  { serverMaxWindowBits: 10, clientMaxWindowBits: 10 },
];

async function main() {
  const server = await start("echo", "--deflate");
  for (const options of AGREEMENTS) {
    const socket = new WebSocket(server.url, { perMessageDeflate: { threshold: 0, ...options } });
    await once(socket, "open");
    assert.match(socket.extensions, /^permessage-deflate/);
    for (let round = 0; round < 100; round++) {
      const size = [0, 1, 63, 64, 600, 5000, 70_000, 300_000][round % 8];
      const message = round % 3 ? JSON.stringify({ round, text: "κόσμε ".repeat(size / 6) }) : Buffer.alloc(size, round);
      const half = message.length >> 1;
      if (round % 5 === 0) {
        socket.send(message.slice(0, half), { fin: false, binary: round % 3 === 0 });
        socket.send(message.slice(half), { fin: true });
      } else {
        socket.send(message);
      }
      const [data, binary] = await once(socket, "message");
      assert.equal(binary, Buffer.isBuffer(message));
      assert.deepEqual(data, Buffer.from(message));
    }
    socket.close();
    await once(socket, "close");
  }
  await server.stop();
  console.log("  npm ws ok");
}

main().catch((error) => { console.error(error); process.exit(1); });
