// A proxy that cuts connections at random points.
const { once } = require("node:events");
const net = require("node:net");

const seed = Number(process.env.SEED ?? Date.now() % 100000);
let state = seed;
const random = (below) => {
  state = (state * 1103515245 + 12345) % 2147483648;
  return Math.floor((state / 2147483648) * below);
};

exports.seed = seed;
exports.random = random;

/** Passes connections to a port of this machine. Cuts each one in a random way, after 200 bytes and up to `most` more, `limit` times in all. */
exports.cutter = async (port, { cuts: limit, bytes: most }) => {
  let cuts = 0;
  const sockets = new Set();
  const server = net.createServer((client) => {
    const upstream = net.connect(port, "127.0.0.1");
    let left = cuts < limit ? 200 + random(most) : Infinity;
    const resets = random(2) === 0;
    const cut = () => {
      for (const socket of [client, upstream]) resets ? socket.resetAndDestroy() : socket.destroy();
    };
    for (const [from, to] of [[client, upstream], [upstream, client]]) {
      sockets.add(from);
      from.on("data", (data) => {
        to.write(data.subarray(0, left));
        if (data.length < left) {
          left -= data.length;
        } else if (left > 0) {
          left = 0;
          cuts++;
          // The bytes before the cut still arrive, if the ways of the network allow it.
          random(2) === 0 ? cut() : setImmediate(cut);
        }
      });
      from.on("error", () => {});
      from.on("close", () => {
        sockets.delete(from);
        to.destroy();
      });
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const stop = () => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { port: server.address().port, cuts: () => cuts, stop };
};
