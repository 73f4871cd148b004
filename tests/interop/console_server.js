// What the tests of the console share: servers, a browser, and checks of pages.
const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { tls, trust } = require("./server.js");

const ARGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-sync",
  "--disable-background-networking",
  "--disable-component-update",
];
const launch = () =>
  chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: [...ARGS, ...trust] });
const AXE = require.resolve("axe-core/axe.min.js");
const WAIT = { timeout: 30_000 };

/** Starts a server, waits until its output contains `ready`, and returns the output and how to stop it. */
async function run(ready, ...args) {
  const child = spawn(process.env.OUTRIGGER, [...args, ...tls], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, SHELL: "/bin/sh", PS1: "$ " },
  });
  const exited = once(child, "exit");
  const kill = () => child.kill("SIGKILL");
  process.on("exit", kill);
  let told = "";
  child.stdout.on("data", (data) => {
    told += data;
  });
  while (!told.includes(ready)) await once(child.stdout, "data");
  return {
    told,
    child,
    async stop() {
      child.kill("SIGTERM");
      const [code] = await exited;
      process.off("exit", kill);
      assert.equal(code, 0);
    },
  };
}

/** The errors of a page: exceptions, and what the browser writes to its console. Failed requests count if `requests` is true. */
function errorsOf(page, requests = true) {
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error" && (requests || !/^Failed to load resource/.test(message.text())))
      errors.push(`${message.text()} ${new URL(message.location().url || "about:blank").pathname}`);
  });
  return errors;
}

async function picture(page, name) {
  if (process.env.PICTURES) await page.screenshot({ path: path.join(process.env.PICTURES, `${name}.png`), fullPage: true });
}

/** Expects no finding of axe-core at any level, in light and in dark. */
async function checkAccess(page, what) {
  await page.addScriptTag({ path: AXE });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    const found = await page.evaluate(async () => {
      const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
      return violations.map(
        ({ id, impact, nodes }) =>
          `${id} (${impact}): ${nodes
            .slice(0, 3)
            .map(({ html, failureSummary }) => `${html} ${failureSummary}`)
            .join("; ")}`,
      );
    });
    assert.deepEqual(found, [], `${what}, ${colorScheme}`);
    await picture(page, `${what}-${colorScheme}`);
  }
  await page.emulateMedia({ colorScheme: "light" });
}

/** Expects that each table is as wide as its section, at any width of the window. */
async function checkWidths(page) {
  const { width, height } = page.viewportSize();
  for (let narrow = 1440; narrow >= 360; narrow -= 60) {
    await page.setViewportSize({ width: narrow, height });
    // A table becomes a list of cards some time after the width has changed.
    await page.waitForFunction(
      () =>
        document.documentElement.scrollWidth <= innerWidth &&
        [...document.querySelectorAll("table")].every(
          (table) => !table.checkVisibility() || table.getBoundingClientRect().right <= table.parentElement.getBoundingClientRect().right + 1,
        ),
      null,
      WAIT,
    );
  }
  await page.setViewportSize({ width, height });
}

/** Scrolls to a section. The console asks only for what is in sight. */
const look = (page, id) => page.locator(`#${id}`).scrollIntoViewIfNeeded(WAIT);

module.exports = { run, launch, errorsOf, picture, checkAccess, checkWidths, look, WAIT };
