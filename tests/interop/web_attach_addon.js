// xterm.js's own AttachAddon, unmodified, on a terminal and on a process, with `?input=text`: what is typed arrives, only
// output is shown, and the close code has the exit code.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_attach_addon.js
const assert = require("node:assert/strict");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { start } = require("./server.js");

const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update"];
process.env.OUTRIGGER_TOKEN = "a-token-of-this-test-alone";

const packages = path.dirname(path.dirname(path.dirname(require.resolve("@xterm/addon-attach/package.json"))));
const PAGE = `<!doctype html>
<meta charset="utf-8">
<link rel="stylesheet" href="node_modules/@xterm/xterm/css/xterm.css">
<div id="terminal"></div>
<script src="node_modules/@xterm/xterm/lib/xterm.js"></script>
<script src="node_modules/@xterm/addon-attach/lib/addon-attach.js"></script>
<script>
  const terminal = new Terminal({ rows: 20, cols: 70 });
  terminal.open(document.getElementById("terminal"));
  const socket = new WebSocket(decodeURIComponent(location.search.slice(1)));
  let texts = 0;
  socket.addEventListener("message", ({ data }) => { if (typeof data === "string") texts++; });
  socket.addEventListener("close", ({ code, reason }) => { globalThis.ended = [code, reason]; });
  terminal.loadAddon(new AttachAddon.AttachAddon(socket));
  terminal.focus();
</script>
`;

async function converse(browser, file, url, bye, expected) {
  const page = await browser.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(error.message));
  url = new URL(url);
  url.searchParams.set("token", process.env.OUTRIGGER_TOKEN); // an example for programs; the server's own page does not do this
  url.searchParams.set("input", "text");
  url.searchParams.set("rows", "20");
  url.searchParams.set("cols", "70");
  await page.goto(`file://${file}?${encodeURIComponent(url.href)}`);
  const shows = (text) => page.waitForFunction((text) => {
    const buffer = terminal.buffer.active;
    const lines = Array.from({ length: buffer.length }, (_, at) => buffer.getLine(at).translateToString(true));
    return `\n${lines.join("\n")}`.includes(text);
  }, text, { timeout: 30_000 });
  await shows("\n$ ");
  await page.keyboard.type("echo κόσμε $((6 * 7)); stty size\n");
  await shows("\nκόσμε 42\n20 70\n$ ");
  await page.keyboard.type('{"type":"resize","rows":1,"cols":1}'); // as any other text
  await page.keyboard.press("Control+u"); // not Control+C: the kernel may discard output that follows a signal (termios(3), NOFLSH)
  await page.keyboard.type("echo still $(stty size)\n");
  await shows("\nstill 20 70\n$ ");
  await page.keyboard.type(`${bye}\n`);
  await page.waitForFunction(() => globalThis.ended, undefined, { timeout: 30_000 });
  assert.deepEqual(await page.evaluate(() => [globalThis.ended, texts]), [expected, 0]);
  assert.deepEqual(wrong, []);
  await page.close();
}

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-attach-"));
  const file = path.join(folder, "index.html");
  fs.writeFileSync(file, PAGE);
  fs.symlinkSync(packages, path.join(folder, "node_modules"));
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET });
  const ends = [["exit 3", [4303, "exited with code 3"]], ["exit 0", [4300, "exited with code 0"]], ["kill -KILL $$", [4437, "killed by SIGKILL"]]];
  try {
    const terminal = await start("terminal", "--env", "PS1=$ ", "--", "bash", "--norc");
    for (const [bye, expected] of ends) await converse(browser, file, terminal.url, bye, expected);
    await terminal.stop();

    const processes = await start("processes");
    for (const [bye, expected] of ends) {
      const response = await fetch(`${processes.url.replace("ws", "http")}/spawn`, {
        method: "POST", headers: { Authorization: `Bearer ${process.env.OUTRIGGER_TOKEN}`, "Content-Type": "application/json" },
        body: JSON.stringify({ command: "bash", args: ["--norc"], allocate_tty: true, rows: 20, cols: 70, env: { PS1: "$ " } }),
      });
      const { process_id: id } = await response.json();
      await converse(browser, file, `${processes.url}/${id}/attach`, bye, expected);
    }
    await processes.stop();
    console.log("  AttachAddon ok");
  } finally {
    await browser.close();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
