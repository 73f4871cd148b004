// `outrigger demo` in headless Chromium: the page shows the clients, and its console reaches every service.
const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const { chromium } = require("playwright-core");
const { tls, trust } = require("./server.js");

const ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update"];

async function main() {
  const env = { ...process.env, SHELL: "/bin/sh", PS1: "$ " };
  const child = spawn(process.env.OUTRIGGER, ["demo", "--listen", "127.0.0.1:0", "--log", "warn", ...tls], { stdio: ["ignore", "pipe", "inherit"], env });
  const exited = once(child, "exit");
  let told = "";
  child.stdout.on("data", (data) => { told += data; });
  while (!told.includes("^C ends")) await once(child.stdout, "data");
  const link = told.match(/https?:\/\/\S+\/\?token=\w+/)[0];
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: [...ARGS, ...trust] });
  try {
    const page = await browser.newPage({ viewport: { width: 1100, height: 1000 } });
    const wrong = [];
    page.on("pageerror", (error) => wrong.push(error.message));
    page.on("console", (message) => { if (message.type() === "error") wrong.push(message.text()); });
    const shows = (text) => page.waitForFunction((text) => document.querySelector("#log").textContent.includes(text), text, { timeout: 30_000 });
    const say = async (text) => { await page.fill("#text", text); await page.press("#text", "Enter"); };
    const connect = async (where) => { await page.selectOption("#where", where); await page.click("#connect"); };

    await page.goto(link);
    await page.getByText(/^process \d+, up/).waitFor();
    assert.doesNotMatch(page.url(), /token/, "the token does not stay in the address");

    await connect("echo");
    await shows("connected to /echo");
    await say("hello κόσμε");
    await shows("< hello κόσμε");
    await page.getByRole("cell", { name: "/echo", exact: true }).waitFor();

    await connect("app");
    await shows("You are guest 1.");
    await say("anybody there?");
    await shows("< guest 1: anybody there?");

    await connect("acp");
    await shows("connected to /acp");
    for (const [name, answer] of [["initialize", '"protocolVersion":1'], ["session/new", '"sessionId":"'], ["session/prompt", '"stopReason":"end_turn"']]) {
      await page.getByRole("button", { name, exact: true }).click();
      assert.doesNotMatch(await page.inputValue("#text"), /SESSION/, "the session is filled in");
      await page.press("#text", "Enter");
      await shows(answer);
    }
    await page.waitForFunction(() => /\D1agent sessions/.test(document.querySelector("#numbers").textContent), null, { timeout: 30_000 });

    await connect("terminal");
    await page.getByRole("cell", { name: "/terminal", exact: true }).waitFor();
    await page.focus("#log");
    await page.keyboard.type("echo $((6*7)) $COLUMNS; stty size\n");
    await shows("42");
    await shows("24 100");

    await page.fill("#command", "cat");
    await page.press("#command", "Enter");
    await page.waitForFunction(() => /\D1processes/.test(document.querySelector("#numbers").textContent), null, { timeout: 30_000 });
    await say("typed to a process");
    await shows("typed to a process");

    const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    assert.ok(await fits(), "no sideways scrolling");
    const pictures = process.env.PICTURES;
    if (pictures) await page.screenshot({ path: `${pictures}/wide.png`, fullPage: true });
    await page.emulateMedia({ colorScheme: "dark" });
    if (pictures) await page.screenshot({ path: `${pictures}/dark.png`, fullPage: true });
    await page.setViewportSize({ width: 360, height: 740 });
    assert.ok(await fits(), "no sideways scrolling on a narrow screen");
    if (pictures) await page.screenshot({ path: `${pictures}/narrow.png`, fullPage: true });
    assert.deepEqual(wrong, []);

    // Without the token there is no page.
    const stranger = await browser.newPage();
    assert.equal((await stranger.goto(new URL("/", link).href)).status(), 401);
  } finally {
    await browser.close();
    child.kill("SIGTERM");
  }
  const [code] = await exited;
  assert.equal(code, 0);
  console.log("  the page and its console ok");
}

main().catch((error) => { console.error(error); process.exit(1); });
