// Headless Chromium: ttyd's own page on a shell of `outrigger terminal`.
//
// usage: node tests/interop/ttyd.js TTYD      the path of ttyd's program, which contains the page
const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const net = require("node:net");
const { chromium } = require("playwright-core");
const { start } = require("./server.js");

const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update",
  // The page comes from this script, so that Chromium does not know that it is local.
  "--disable-features=LocalNetworkAccessChecks"];
const PATIENCE = 30_000;

/** A port that was free a moment ago. */
const freePort = () => new Promise((resolve) => {
  const server = net.createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

/** The page that ttyd serves. */
async function takePage(program) {
  const port = await freePort();
  const ttyd = spawn(program, ["-i", "127.0.0.1", "-p", `${port}`, "true"], { stdio: "ignore" });
  try {
    for (const deadline = Date.now() + PATIENCE; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
      try {
        return await (await fetch(`http://127.0.0.1:${port}/`)).text();
      } catch (error) {
        if (Date.now() > deadline) throw error;
      }
    }
  } finally {
    ttyd.kill("SIGTERM");
  }
}

async function main() {
  const html = await takePage(process.argv[2]);
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET });
  const server = await start("terminal", "--allow-origin", "*", "--path", "/ws", "--env", "PS1=prompt> ", "--", "bash", "--norc");
  try {
    const page = await browser.newPage({ viewport: { width: 900, height: 500 } });
    const errors = [];
    page.on("pageerror", (error) => errors.push(error.message));
    // The page belongs to the address of the server, as ttyd's page does. It passes the query on.
    const url = new URL(server.url);
    const origin = `http://${url.host}`;
    await page.route(`${origin}/**`, (route) => route.fulfill(route.request().url().endsWith("/token")
      ? { contentType: "application/json", body: '{"token":""}' }
      : { contentType: "text/html", body: html }));
    await page.goto(`${origin}/${url.search}`);
    const shown = (text) => page.waitForFunction((text) => {
      const buffer = window.term?.buffer.active;
      if (!buffer) return false;
      const lines = Array.from({ length: buffer.length }, (_, at) => buffer.getLine(at).translateToString(true));
      return lines.join("\n").includes(text);
    }, text, { timeout: PATIENCE });
    await shown("prompt>");
    assert.equal(await page.title(), `bash --norc (${require("node:os").hostname()})`);
    await page.keyboard.type("echo the answer is $((6 * 7)); printf 'κόσμε\\n'\n");
    await shown("the answer is 42\nκόσμε");

    // The size of the first message, and of a resize.
    const size = () => page.evaluate(() => [window.term.rows, window.term.cols]);
    const before = await size();
    await page.keyboard.type("stty size\n");
    await shown(`\n${before.join(" ")}`);
    await page.setViewportSize({ width: 1200, height: 700 });
    await page.waitForFunction(([rows, cols]) => window.term.rows > rows && window.term.cols > cols, before);
    await page.keyboard.type("stty size\n");
    await shown(`\n${(await size()).join(" ")}`);

    // Enough output that the page pauses it.
    await page.keyboard.type("seq 1 1000000; echo end-$((6 * 7))\n");
    await shown("1000000\nend-42");
    await page.keyboard.type("sleep 1000\n");
    await page.keyboard.press("Control+c");
    await page.keyboard.type("exit 3\n");
    await page.getByText("to Reconnect").waitFor({ timeout: PATIENCE });
    await page.keyboard.press("Enter");
    await shown("prompt>");
    assert.deepEqual(errors, []);
    console.log("  ttyd's page ok");
  } finally {
    await browser.close();
    await server.stop();
  }
}

main().catch((error) => { console.error(error); process.exit(1); });
