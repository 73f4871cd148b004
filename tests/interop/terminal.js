// Headless Chromium: examples/terminal with xterm.js on a real shell.
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { start } = require("./server.js");

const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update"];

async function main() {
  // Puts xterm.js where `npm install` would put it for the page.
  const folder = path.join(process.env.TOOLS, "terminal");
  fs.mkdirSync(folder, { recursive: true });
  fs.copyFileSync("examples/terminal/index.html", path.join(folder, "index.html"));
  fs.rmSync(path.join(folder, "node_modules"), { recursive: true, force: true });
  fs.symlinkSync(path.join(process.env.TOOLS, "node_modules"), path.join(folder, "node_modules"));

  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET });
  const server = await start("terminal", "--env", "PS1=\\[\\e[1;32m\\]outrigger\\[\\e[0m\\]:\\w$ ", "--", "bash", "--norc");
  try {
    const page = await browser.newPage({ viewport: { width: 900, height: 500 } });
    await page.goto(`file://${folder}/index.html?${encodeURIComponent(server.url)}`);
    const shown = (text) => page.waitForFunction((text) => {
      const buffer = terminal.buffer.active;
      const lines = Array.from({ length: buffer.length }, (_, at) => buffer.getLine(at).translateToString(true));
      return lines.join("\n").includes(text);
    }, text, { timeout: 30_000 });
    await shown("outrigger:");
    await page.keyboard.type("echo the answer is $((6 * 7))\n");
    await shown("the answer is 42");
    await page.keyboard.type("printf 'κόσμε \\e[31mred\\e[0m\\n'; ls --color=always /\n");
    await shown("κόσμε red");

    const before = await page.evaluate(() => [terminal.rows, terminal.cols]);
    await page.setViewportSize({ width: 1200, height: 700 });
    await page.waitForFunction(([rows, cols]) => terminal.rows > rows && terminal.cols > cols, before);
    const [rows, cols] = await page.evaluate(() => [terminal.rows, terminal.cols]);
    await page.keyboard.type("stty size\n");
    await shown(`\n${rows} ${cols}`);
    await page.keyboard.type("seq 3; sleep 1000\n");
    await shown("\n3");
    if (process.env.SCREENSHOT) await page.screenshot({ path: process.env.SCREENSHOT });
    await page.keyboard.press("Control+c");
    await page.keyboard.type("exit 3\n");
    await shown("[exited with code 3]");
    await page.getByText("closed: 1000").waitFor({ timeout: 30_000 });
    await server.stop();
    console.log("  terminal page ok");
  } finally {
    await browser.close();
  }
}

main().catch((error) => { console.error(error); process.exit(1); });
