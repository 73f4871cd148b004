// The pages in headless Firefox: the terminal with a reload, a cut and the settings; the console; an agent's page.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_firefox.js      Firefox must be installed
const assert = require("node:assert/strict");
const { once } = require("node:events");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const puppeteer = require("puppeteer-core");
const { start } = require("./server.js");

const TOKEN = process.env.OUTRIGGER_TOKEN = "a-token-of-this-test-alone";
const WAIT = { timeout: 30_000, polling: 100 };

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-firefox-"));
  const config = path.join(folder, "serve.json");
  fs.writeFileSync(config, JSON.stringify({ routes: {
    "/terminal": { terminal: { command: ["bash", "--norc"], env: ["PS1=$ "] } },
    "/acp": { agent: { command: [process.env.OUTRIGGER, "example-agent"] } },
  } }));
  const server = await start("serve", "--console", "--config", config);
  const open = new Set();
  const proxy = net.createServer((near) => {
    const far = net.connect(Number(new URL(server.url).port), "127.0.0.1");
    for (const [from, to] of [[near, far], [far, near]]) {
      open.add(from);
      from.on("error", () => {}).on("close", () => { open.delete(from); to.destroy(); });
      from.pipe(to);
    }
  }).listen(0, "127.0.0.1");
  await once(proxy, "listening");
  const base = `http://127.0.0.1:${proxy.address().port}`;
  const browser = await puppeteer.launch({ browser: "firefox", executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr", headless: true });
  try {
    const page = await browser.newPage();
    const wrong = [];
    // Firefox reports the connections that a reload ends.
    page.on("pageerror", (error) => { if (!/was interrupted while the page was loading/.test(error)) wrong.push(String(error.stack ?? error)); });
    page.on("dialog", (dialog) => dialog.accept().catch(() => {}));
    const shows = (text) => page.waitForFunction((text) => {
      const buffer = globalThis.outriggerTerminal?.buffer.active;
      const lines = Array.from({ length: buffer?.length ?? 0 }, (_, at) => buffer.getLine(at).translateToString(true).trimEnd());
      return `\n${lines.join("\n")}`.includes(text);
    }, WAIT, text);
    const says = (text) => page.waitForFunction((text) => document.querySelector("#bar").innerText.includes(text), WAIT, text);
    await page.goto(`${base}/terminal#token=${TOKEN}`);
    await shows("\n$");
    assert.equal(page.url(), `${base}/terminal`);
    await page.keyboard.type("x=kept; echo 'κόσμε 日本' $((6 * 7))\n");
    await shows("\nκόσμε 日本 42\n$");
    await page.reload();
    await says("Connected");
    await shows("\nκόσμε 日本 42\n$");
    for (const socket of open) socket.resetAndDestroy();
    await page.keyboard.type("echo $x after a cut\n");
    await shows("\nkept after a cut\n$");
    await page.keyboard.type("clear; seq 100000 | tail -n 3\n");
    await shows("\n99999\n100000\n$");
    await page.click("#settings");
    await page.select("#setting-theme", "contrast");
    await page.waitForFunction(() => outriggerTerminal.options.theme.background === "#000000", WAIT);
    await page.keyboard.press("Escape");
    await page.keyboard.type("exit 3\n");
    await says("Exited with code 3");

    await page.goto(`${base}/`);
    await page.waitForFunction(() => document.body.innerText.includes("default, scope all"), WAIT);
    await page.goto(`${base}/acp`);
    await page.waitForFunction(() => { const button = document.querySelector("#new"); return button && !button.hidden; }, WAIT);
    assert.deepEqual(wrong, []);
    console.log("  Firefox: a terminal, the console and an agent ok");
  } finally {
    await browser.close();
    proxy.close();
    for (const socket of open) socket.destroy();
    fs.rmSync(folder, { recursive: true, force: true });
  }
  await server.stop();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
