// What somebody does in the console besides looking: links that let others approve, several links and programs at once, and recordings.
//
// env: OUTRIGGER; PICTURES, a directory for screenshots
const assert = require("node:assert/strict");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { checkAccess, errorsOf, launch, look, run, WAIT } = require("./console_server.js");

const TOKEN = "a-token-of-this-test-alone";

/** The rows of a table. */
const rows = (page, name) => page.locator(`#${name}-table tbody tr`);
const count = (page, name, count) =>
  page.waitForFunction(([name, count]) => document.querySelectorAll(`#${name}-table tbody tr`).length === count, [name, count], WAIT);

/** A link made in the console lets a colleague approve what the agent of somebody else wants to do. */
async function approve(browser, context, page, origin) {
  const worker = await context.newPage();
  await worker.goto(`${origin}/acp`);
  await worker.getByRole("button", { name: "New session" }).click(WAIT);
  await worker.getByRole("button", { name: "Begin" }).click(WAIT);
  await worker.locator("#prompt").waitFor(WAIT);
  await look(page, "agents");
  await rows(page, "sessions").getByRole("button", { name: /^Link/ }).click(WAIT);
  const dialog = page.getByRole("dialog", { name: "Link to this session" });
  await dialog.getByText("and nothing else").waitFor(WAIT);
  await dialog.getByLabel("may also answer permission requests").check();
  await dialog.getByText("and answer its permission requests").waitFor(WAIT);
  await checkAccess(page, "console-answering-link");
  await dialog.getByRole("button", { name: "Make link" }).click();
  await dialog.getByText(/The link is in your clipboard|Copy the link/).waitFor(WAIT);
  const url = await dialog.getByLabel("Link", { exact: true }).inputValue();
  await dialog.getByRole("button", { name: "Done" }).click();
  await look(page, "links");
  await rows(page, "links").getByText("watch and approve", { exact: true }).waitFor(WAIT);

  const stranger = await browser.newContext();
  const guest = await stranger.newPage();
  await guest.goto(url);
  await guest.getByText("With your link, you may answer").waitFor(WAIT);
  await worker.fill("#prompt", "/permission");
  await worker.press("#prompt", "Escape");
  await worker.press("#prompt", "Enter");
  await guest.getByRole("button", { name: "Do it" }).click(WAIT);
  await worker.getByText("You allowed it, and nothing was done.").waitFor(WAIT);
  await worker.getByText(/^answered: Do it, by link:\d+$/).waitFor(WAIT);
  await stranger.close();
  await worker.close();
  console.log("  a link of the console that approves ok");
}

/** Several links are revoked together. */
async function revoke(browser, page, origin) {
  await page.fill("#spawn-command", "cat");
  await page.press("#spawn-command", "Enter");
  const row = rows(page, "processes").filter({ hasText: "cat" });
  await row.getByText("running").waitFor(WAIT);
  const before = await rows(page, "links").count();
  const urls = [];
  for (let made = 1; made <= 2; made++) {
    await row.getByRole("button", { name: /^Link/ }).click();
    await page.getByRole("button", { name: "Make link" }).click();
    const address = page.locator("dialog .address");
    await address.and(page.locator(":visible")).waitFor(WAIT);
    urls.push(await address.inputValue());
    await page.getByRole("button", { name: "Done" }).click();
    await look(page, "links");
    await count(page, "links", before + made);
  }
  const stranger = await browser.newContext();
  const guest = await stranger.newPage();
  await guest.goto(urls[0]);
  await guest.getByText(/^Watching/).waitFor(WAIT);
  await page.fill("#links-filter", "process");
  await page.getByRole("checkbox", { name: "Choose all shown links" }).check();
  await page.getByRole("button", { name: "Revoke 2 chosen" }).click();
  await page.getByRole("dialog").getByText("2 links.").waitFor(WAIT);
  await page.getByRole("button", { name: "Revoke", exact: true }).last().click();
  await page.locator("#links").getByText("Nothing matches the filter.").waitFor(WAIT);
  await page.fill("#links-filter", "");
  await count(page, "links", before);
  await guest.getByText(/The link was revoked/i).waitFor(WAIT);
  for (const url of urls) {
    const token = new URLSearchParams(new URL(url).hash.slice(1)).get("token");
    const { status } = await fetch(`${origin}/.outrigger/session`, { headers: { Authorization: `Bearer ${token}` } });
    assert.equal(status, 401);
  }
  await stranger.close();
  console.log("  several links are revoked together ok");
}

/** Several programs of terminals end together, and their clients learn it. */
async function end(context, page, origin) {
  const terminals = [];
  for (let at = 0; at < 3; at++) {
    const terminal = await context.newPage();
    await terminal.goto(`${origin}/terminal`);
    await terminal.getByText("Connected", { exact: true }).waitFor(WAIT);
    terminals.push(terminal);
  }
  await look(page, "programs");
  await page.fill("#programs-filter", "/terminal");
  await count(page, "programs", 3);
  for (const at of [0, 1]) await rows(page, "programs").nth(at).getByRole("checkbox").check();
  await page.getByRole("button", { name: "End 2 chosen" }).click();
  await page.getByRole("dialog").getByText(/^2 programs\./).waitFor(WAIT);
  await page.getByRole("button", { name: "End", exact: true }).last().click();
  await count(page, "programs", 1);
  const states = async () => Promise.all(terminals.map((terminal) => terminal.locator("#state").textContent()));
  const ended = async () => (await states()).filter((text) => /operator/i.test(text)).length;
  const deadline = Date.now() + WAIT.timeout;
  while ((await ended()) < 2) assert.ok(Date.now() < deadline && (await new Promise((done) => setTimeout(() => done(true), 100))), (await states()).join());
  assert.equal((await states()).filter((text) => text === "Connected").length, 1);
  await page.fill("#programs-filter", "");
  for (const terminal of terminals) await terminal.close({ runBeforeUnload: false });
  console.log("  several programs end together ok");
}

/** The recording of a process is saved as a file. */
async function record(page) {
  await page.fill("#spawn-command", "echo to be recorded");
  await page.press("#spawn-command", "Enter");
  const row = rows(page, "processes").filter({ hasText: "to be recorded" });
  await row.getByText("exited with 0").waitFor(WAIT);
  const [download] = await Promise.all([page.waitForEvent("download", WAIT), row.getByRole("button", { name: /^Recording of/ }).click()]);
  assert.match(download.suggestedFilename(), /^[0-9a-f-]+\.cast$/);
  const [head, ...events] = fs.readFileSync(await download.path(), "utf8").trimEnd().split("\n").filter((line) => !line.startsWith("#")).map((line) => JSON.parse(line));
  assert.equal(head.version, 3);
  assert.match(events.filter(([, kind]) => kind === "o").map(([, , data]) => data).join(""), /to be recorded\r\n/);
  console.log("  a recording is saved ok");
}

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-"));
  const config = path.join(folder, "config.json");
  const routes = {
    "/process": { processes: { record: path.join(folder, "recordings") } },
    "/terminal": { terminal: { command: ["cat"] } },
    "/acp": { agent: { command: [process.env.OUTRIGGER, "example-agent"], approvals: "any" } },
  };
  fs.mkdirSync(path.join(folder, "recordings"));
  fs.writeFileSync(config, JSON.stringify({ routes }));
  process.env.OUTRIGGER_TOKEN = TOKEN;
  const server = await run("console at", "serve", "--config", config, "--listen", "127.0.0.1:0", "--log", "warn");
  const { origin } = new URL(server.told.match(/console at (\S+)/)[1]);
  const browser = await launch();
  try {
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, bypassCSP: true, acceptDownloads: true });
    // Each tab has its own token.
    await context.addInitScript((token) => sessionStorage.setItem("outrigger.token", token), TOKEN);
    const page = await context.newPage();
    const errors = errorsOf(page);
    await page.goto(origin);
    await page.getByText("default, scope all").waitFor(WAIT);
    await record(page);
    await revoke(browser, page, origin);
    await approve(browser, context, page, origin);
    await end(context, page, origin);
    assert.deepEqual(errors, []);
  } finally {
    await browser.close();
  }
  await server.stop();
  fs.rmSync(folder, { recursive: true });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
