// `outrigger` as a child process of a test.
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const readline = require("node:readline");

/** Options from the environment, with which the tests run over TLS. */
exports.tls = (process.env.TLS_OPTIONS ?? "").split(" ").filter((option) => option);

/** The arguments with which Chromium accepts the certificate of that server. */
exports.trust = process.env.TLS_SPKI ? [`--ignore-certificate-errors-spki-list=${process.env.TLS_SPKI}`] : [];

/** A test that fails leaves nothing behind. */
const running = new Set();
process.on("exit", () => { for (const child of running) child.kill(); });

/** Starts `outrigger COMMAND` on a free port. `url` is its address; `stop` stops it and checks that it exits cleanly. */
exports.start = async (command, ...args) => {
  // A page that is opened as a file has the origin `null`.
  const all = [command, "--listen", "127.0.0.1:0", "--log", "warn", "--allow-origin", "null", ...exports.tls, ...args];
  const child = spawn(process.env.OUTRIGGER, all, { stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(child, "exit");
  running.add(child);
  exited.then(() => running.delete(child));
  let url;
  for await (const line of readline.createInterface(child.stdout)) {
    url = line.match(/wss?:\/\/\S+/)?.[0];
    if (url) break;
  }
  return {
    url,
    pid: child.pid,
    async stop() {
      child.kill("SIGTERM");
      const [code] = await exited;
      if (code !== 0) throw new Error(`outrigger ended with ${code}`);
    },
  };
};
