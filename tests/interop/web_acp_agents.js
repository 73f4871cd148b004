// Real agents behind the page in headless Chromium, as far as they go without a model: opencode opens a session and lets its user
// choose, Gemini CLI asks its user to sign in, and Claude Code says why it cannot go on.
//
// env: OUTRIGGER; AGENTS, the directory with the agents' npm packages; PICTURES, a directory for screenshots
const assert = require("node:assert/strict");
const path = require("node:path");
const { chromium } = require("playwright-core");
const agentPage = require("./web_agent_page.js");

const ARGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-background-networking", "--disable-component-update"];
const WAIT = { timeout: 60_000 };
const bin = (name) => path.resolve(process.env.AGENTS, "node_modules", ".bin", name);

const state = (page, text) => agentPage.state(page, text, WAIT);

const agents = {
  async opencode(page) {
    await page.locator("#prompt").waitFor(WAIT);
    await state(page, "connected");
    const settings = page.locator("#settings select");
    await settings.first().waitFor(WAIT);
    const names = await settings.evaluateAll((all) => all.map(({ title }) => title));
    const mode = page.locator("#settings select").filter({ has: page.locator("option[value=plan]") });
    await mode.selectOption("plan");
    await page.waitForFunction(() => !document.querySelector("#settings :disabled"), null, WAIT);
    assert.equal(await mode.inputValue(), "plan");
    // The agent has no model. Its turn is stopped, or ends with an error.
    await page.fill("#prompt", "Say hello", WAIT);
    await page.press("#prompt", "Enter");
    await page.locator(".transcript").getByText("Say hello").waitFor(WAIT);
    await page.getByRole("button", { name: "Stop" }).click(WAIT).catch((error) => { if (!/Timeout/.test(error.message)) throw error; });
    await state(page, "connected");
    // A reload opens the session again.
    await page.reload();
    await page.locator(".transcript").getByText("Say hello").waitFor(WAIT);
    await page.locator("#prompt").waitFor(WAIT);
    return `a session with ${names.join(" and ")}, a mode, a turn that was stopped, a reload`;
  },
  async gemini(page) {
    const dialog = page.locator("dialog");
    await dialog.getByText("The agent needs you to sign in").waitFor(WAIT);
    const ways = await dialog.locator(".ways button").count();
    assert.ok(ways > 1, `${ways} ways to sign in`);
    await dialog.getByRole("button", { name: "Cancel" }).click();
    await page.locator("#notes").getByText(/key|auth|sign/i).first().waitFor(WAIT);
    return `${ways} ways to sign in`;
  },
  async "claude-code-acp"(page) {
    const note = page.locator("#notes").getByText(/\w/).first();
    await note.waitFor(WAIT);
    return `it says: ${await note.textContent()}`;
  },
};
const commands = { opencode: [bin("opencode"), "acp"], gemini: [bin("gemini"), "--acp"], "claude-code-acp": [bin("claude-code-acp")] };

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ARGS });
  try {
    for (const [name, part] of Object.entries(agents)) {
      const server = await agentPage.startAgent(commands[name], { args: ["--drain-timeout", "2s"], isHome: true });
      const page = await browser.newPage();
      const errors = [];
      page.on("pageerror", ({ message }) => errors.push(message));
      await page.goto(server.page);
      await page.getByRole("button", { name: "New session" }).click(WAIT);
      await page.getByRole("button", { name: "Begin" }).click(WAIT);
      const said = await part(page);
      if (process.env.PICTURES) await page.screenshot({ path: path.join(process.env.PICTURES, `agent-real-${name}.png`) });
      assert.deepEqual(errors, []);
      await page.close();
      await server.stop();
      console.log(`  ${name} in the page: ${said}`);
    }
  } finally {
    await browser.close();
  }
}
main().catch((error) => {
  console.error(error);
  process.exit(1);
});
