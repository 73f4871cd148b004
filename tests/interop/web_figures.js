// Figures of the terminal page beside those of ttyd's, in one run of headless Chromium without a GPU, in passes in which the pages take turns: the echo of
// a key, a flood of output, a reload, the idle main thread, and the bytes of each page. Fails if the page is much slower than ttyd's, or is
// not idle.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_figures.js TTYD      the path of ttyd's program
// env:   PASSES=3: the passes of each page
//        KEYS=200: the keys in each pass
//        WEB=web: takes the scripts and style sheets from this directory. The bytes are then not those of the network
const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { start } = require("./server.js");
const { serveFrom } = require("./web_page.js");

const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update"];
const TOKEN = process.env.OUTRIGGER_TOKEN = "a-token-of-this-test-alone";
const WAIT = { timeout: 60_000, polling: 50 };
const PASSES = Number(process.env.PASSES ?? 3);
const KEYS = Number(process.env.KEYS ?? 200);
const LINES = 200_000;
const IDLE = 10_000;
/** Waits for a text. ttyd's terminal is `term`, the one of Outrigger's page `outriggerTerminal`. */
const shows = (page, text) => page.waitForFunction((text) => {
  const buffer = (globalThis.outriggerTerminal ?? globalThis.term)?.buffer.active;
  const lines = Array.from({ length: buffer?.length ?? 0 }, (_, at) => buffer.getLine(at).translateToString(true).trimEnd());
  return `\n${lines.join("\n")}`.includes(text);
}, text, WAIT);

/** The bytes that a page takes over the network, without what it gets from its connection. */
async function weigh(browser, url, ready) {
  const context = await browser.newContext({ viewport: { width: 900, height: 500 } });
  if (process.env.WEB) await serveFrom(context, process.env.WEB);
  const page = await context.newPage();
  const session = await context.newCDPSession(page);
  await session.send("Network.enable");
  let bytes = 0;
  let requests = 0;
  session.on("Network.loadingFinished", ({ encodedDataLength }) => { bytes += encodedDataLength; requests++; });
  await page.goto(url);
  await ready(page);
  return { context, page, session, bytes: () => bytes, requests: () => requests };
}

/** Opens a terminal page on a shell whose prompt is "$ ". A key counts from its event until the terminal has drawn the echo. */
async function open(browser, url) {
  const { context, page, session, bytes } = await weigh(browser, url, (page) => shows(page, "\n$"));
  const weight = bytes();
  page.on("dialog", (dialog) => dialog.accept().catch(() => {}));
  await page.evaluate(() => {
    const terminal = globalThis.outriggerTerminal ?? globalThis.term;
    globalThis.echoes = [];
    let pressed = 0, column = 0;
    addEventListener("keydown", () => { pressed = performance.now(); column = terminal.buffer.active.cursorX; }, true);
    terminal.onRender(() => {
      if (!pressed || terminal.buffer.active.cursorX === column) return;
      echoes.push(performance.now() - pressed);
      pressed = 0;
    });
    terminal.focus();
  });
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const busy = async () => (await session.send("Performance.getMetrics")).metrics.find(({ name }) => name === "TaskDuration").value;
  return { context, page, weight, busy };
}

/** Measures the pages beside each other. They take turns, so that what else the machine does meets all of them. */
async function measure(browser, urls) {
  const pages = [];
  for (const url of urls) pages.push(await open(browser, url));
  for (let count = 1; count <= KEYS; count++)
    for (const { page } of pages) {
      await page.keyboard.press(count % 40 ? "a" : "Control+u");
      await page.waitForFunction((count) => globalThis.echoes.length >= count, count, WAIT);
    }
  for (const { page } of pages) await page.keyboard.press("Control+u");

  // What the keys have set off is done.
  await new Promise((done) => setTimeout(done, 1000));
  const before = await Promise.all(pages.map(({ busy }) => busy()));
  await new Promise((done) => setTimeout(done, IDLE));
  const after = await Promise.all(pages.map(({ busy }) => busy()));

  const figures = [];
  for (const [at, { page, context, weight }] of pages.entries()) {
    const echoes = await page.evaluate(() => globalThis.echoes);
    const flooded = Date.now();
    await page.keyboard.type(`seq ${LINES}; echo the e""nd\n`);
    await shows(page, "\nthe end\n$");
    const flood = Date.now() - flooded;
    const reloaded = Date.now();
    await page.reload();
    await shows(page, "\n$");
    const reload = Date.now() - reloaded;
    await context.close();
    figures.push({ echoes, idle: (after[at] - before[at]) / (IDLE / 1000), flood, reload, weight });
  }
  return figures;
}

/** The value below which a share of the values is. */
const quantile = (values, share) => values.toSorted((a, b) => a - b)[Math.floor(values.length * share)];

/** The figures of several passes: those of all keys, and the medians of the others. */
function sum(passes) {
  const echoes = passes.flatMap((pass) => pass.echoes);
  const median = (name) => quantile(passes.map((pass) => pass[name]), 0.5);
  return { median: quantile(echoes, 0.5), p99: quantile(echoes, 0.99), idle: median("idle"), flood: median("flood"), reload: median("reload"), weight: median("weight") };
}

async function main() {
  const port = await new Promise((done) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => { const { port } = server.address(); server.close(() => done(port)); });
  });
  const ttyd = spawn(process.argv[2], ["-W", "-i", "127.0.0.1", "-p", `${port}`, "env", "PS1=$ ", "bash", "--norc"], { stdio: "ignore" });
  process.on("exit", () => ttyd.kill());
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-figures-"));
  const config = path.join(folder, "serve.json");
  fs.writeFileSync(config, JSON.stringify({ routes: {
    "/terminal": { terminal: { command: ["bash", "--norc"], env: ["PS1=$ "] } },
    "/acp": { agent: { command: [process.env.OUTRIGGER, "example-agent"] } },
  } }));
  const server = await start("serve", "--console", "--config", config);
  const base = new URL(server.url).origin.replace("ws", "http");
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET });
  try {
    const urls = [`${base}/terminal#token=${TOKEN}`, `http://127.0.0.1:${port}/`];
    const passes = [[], []];
    for (let pass = 0; pass < PASSES; pass++) {
      const figures = await measure(browser, pass % 2 ? urls.toReversed() : urls);
      for (const [at, one] of (pass % 2 ? figures.toReversed() : figures).entries()) passes[at].push(one);
    }
    const [ours, theirs] = passes.map(sum);
    const rows = [
      ["echo of a key, median", "ms", 1, "median"], ["echo of a key, 99th percentile", "ms", 1, "p99"],
      [`${LINES} lines`, "s", 2, "flood", 1000], ["reload, until the prompt", "ms", 0, "reload"],
      ["main thread, idle", "%", 2, "idle", 0.01], ["bytes of the page", "kB", 1, "weight", 1000],
    ];
    console.log("| | Outrigger | ttyd |\n|---|---|---|");
    for (const [title, unit, digits, name, divisor = 1] of rows) {
      console.log(`| ${title} | ${(ours[name] / divisor).toFixed(digits)} ${unit} | ${(theirs[name] / divisor).toFixed(digits)} ${unit} |`);
    }
    for (const [title, address, ready] of [["the console", "/", () => document.body.innerText.includes("default, scope all")],
      ["the page of an agent", "/acp", () => document.querySelector("#new")?.hidden === false]]) {
      const { context, bytes, requests } = await weigh(browser, `${base}${address}#token=${TOKEN}`, (page) => page.waitForFunction(ready, undefined, WAIT));
      console.log(`| ${title}: ${requests()} requests | ${(bytes() / 1000).toFixed(1)} kB | |`);
      await context.close();
    }
    assert.ok(ours.median < 1.25 * theirs.median + 2, "the echo is not much slower than ttyd's");
    assert.ok(ours.idle < 0.01, "an idle page takes less than 1 % of a processor");
    const ended = once(ttyd, "exit");
    ttyd.kill();
    await ended;
  } finally {
    await browser.close();
    fs.rmSync(folder, { recursive: true, force: true });
  }
  await server.stop();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
