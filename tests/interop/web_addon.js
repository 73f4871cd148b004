// The addon of the package outrigger-client on a plain terminal of xterm.js, in headless Chromium, in a page of another origin.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_addon.js
const assert = require("node:assert/strict");
const { execFileSync } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { start } = require("./server.js");

const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update"];
const TOKEN = process.env.OUTRIGGER_TOKEN = "a-token-of-this-test-alone";
const WAIT = { timeout: 30_000 };
const xterm = path.dirname(require.resolve("@xterm/xterm/package.json"));
const PAGE = `<!doctype html>
<meta charset="utf-8">
<link rel="stylesheet" href="xterm.css">
<div id="terminal"></div>
<script src="xterm.js"></script>
<script type="module">
  import { OutriggerAddon } from "./package/xterm.js";
  globalThis.terminal = new Terminal({ rows: 20, cols: 70 });
  terminal.open(document.getElementById("terminal"));
  const { url, ...options } = JSON.parse(decodeURIComponent(location.hash.slice(1)));
  globalThis.addon = new OutriggerAddon(url, { protocols: ["outrigger", "outrigger.token.${TOKEN}"], ...options });
  globalThis.states = [];
  addon.addEventListener("state", ({ detail }) => states.push(detail.name));
  addon.addEventListener("exit", ({ detail }) => { globalThis.exit = detail.exitCode; });
  terminal.loadAddon(addon);
  terminal.focus();
</script>
`;

/** A proxy whose connections can be cut. */
async function cutter(url) {
  const open = new Set();
  const { port } = new URL(url);
  const server = net.createServer((near) => {
    const far = net.connect(Number(port), "127.0.0.1");
    for (const [from, to] of [[near, far], [far, near]]) {
      open.add(from);
      from.on("error", () => {}).on("close", () => { open.delete(from); to.destroy(); });
      from.pipe(to);
    }
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const through = new URL(url);
  through.port = server.address().port;
  return { url: through.href, cut: () => { for (const socket of open) socket.resetAndDestroy(); }, stop: () => { for (const socket of open) socket.destroy(); server.close(); } };
}

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-addon-"));
  execFileSync("packaging/npm-client/files.sh", [folder]);
  const files = { "/": ["text/html", PAGE], "/xterm.js": ["text/javascript", fs.readFileSync(path.join(xterm, "lib/xterm.js"))],
    "/xterm.css": ["text/css", fs.readFileSync(path.join(xterm, "css/xterm.css"))] };
  for (const name of ["index.js", "xterm.js"]) files[`/package/${name}`] = ["text/javascript", fs.readFileSync(path.join(folder, name))];
  const site = http.createServer(({ url }, response) => {
    const [type, content] = files[url] ?? [];
    response.writeHead(type ? 200 : 404, { "Content-Type": type ?? "text/plain" }).end(content);
  }).listen(0, "127.0.0.1");
  await once(site, "listening");
  const origin = `http://127.0.0.1:${site.address().port}`;
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET });
  const wrong = [];
  const open = async (options) => {
    const page = await (await browser.newContext()).newPage();
    page.on("pageerror", (error) => wrong.push(error.stack));
    await page.goto(`${origin}/#${encodeURIComponent(JSON.stringify(options))}`);
    const shows = (text) => page.waitForFunction((text) => {
      const buffer = globalThis.terminal?.buffer.active;
      const lines = Array.from({ length: buffer?.length ?? 0 }, (_, at) => buffer.getLine(at).translateToString(true));
      return `\n${lines.join("\n")}`.includes(text);
    }, text, WAIT);
    return { page, shows, type: (text) => page.keyboard.type(text) };
  };
  try {
    const server = await start("terminal", "--allow-origin", origin, "--env", "PS1=$ ", "--", "bash", "--norc");
    const proxy = await cutter(server.url);
    const one = await open({ url: proxy.url });
    await one.shows("\n$");
    await one.type("echo κόσμε $((6 * 7)); stty size\n");
    await one.shows("\nκόσμε 42\n20 70\n$");
    await one.page.evaluate(() => terminal.resize(60, 15));
    await one.type("clear; stty size; x=kept\n");
    await one.shows("\n15 60\n$");
    proxy.cut();
    await one.type("echo $x\n");
    await one.shows("\nkept\n$");
    await one.page.waitForFunction(() => states.includes("lost") && states.at(-1) === "open", undefined, WAIT);
    await one.type("exit 3\n");
    await one.page.waitForFunction(() => globalThis.exit === 3 && states.at(-1) === "ended" && !addon.live, undefined, WAIT);
    proxy.stop();
    await server.stop();

    // A process: one writes, another one watches at the writer's size, takes over, and a third one continues at a byte.
    const processes = await start("processes", "--allow-origin", origin);
    const response = await fetch(`${processes.url.replace("ws", "http")}/by-name/shell`, {
      method: "PUT", headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" },
      body: JSON.stringify({ command: "bash", args: ["--norc"], allocate_tty: true, env: { PS1: "$ " } }),
    });
    assert.equal(response.status, 200);
    const url = `${processes.url}/by-name/shell`;
    const writer = await open({ url });
    await writer.shows("\n$");
    await writer.type("clear; echo first\n");
    await writer.shows("\nfirst\n$");
    const viewer = await open({ url, viewer: true });
    await viewer.shows("\nfirst\n$");
    await writer.page.evaluate(() => terminal.resize(50, 12));
    await viewer.page.waitForFunction(() => terminal.cols === 50 && terminal.rows === 12, undefined, WAIT);
    await viewer.type("echo by the viewer\n");
    await writer.type("echo second\n");
    await viewer.shows("\nsecond\n$");
    assert.doesNotMatch(await viewer.page.evaluate(() => terminal.buffer.active.getLine(2).translateToString()), /by the viewer/);
    await viewer.page.evaluate(() => addon.restart({ viewer: false, takeover: true }));
    await writer.page.waitForFunction(() => states.at(-1) === "taken", undefined, WAIT);
    await viewer.type("echo third\n");
    await viewer.shows("\nthird\n$");
    const since = await viewer.page.evaluate(() => addon.offset);
    await viewer.type("echo fourth\n");
    await viewer.shows("\nfourth\n$");
    const later = await open({ url, viewer: true, since });
    await later.shows("\nfourth\n$");
    assert.doesNotMatch(await later.page.evaluate(() => [0, 1, 2, 3].map((at) => terminal.buffer.active.getLine(at).translateToString(true)).join()), /third/);
    await viewer.page.evaluate(() => addon.dispose());
    await processes.stop();
    assert.deepEqual(wrong, []);
    console.log("  the addon for xterm.js ok");
  } finally {
    await browser.close();
    site.close();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
