// The transcript of a session: messages, tool calls, plans, terminals and permission requests, as the agent reports them in version 1
// or version 2 of the Agent Client Protocol.

import { isObject } from "./agent_client.js";
import { list, own, showBlock, ToolCall, visible } from "./agent_tools.js";
import { element } from "./common.js";
import { showMarkdown } from "./markdown.js";
import { plain } from "./view.js";

/** The most entries that the transcript keeps, and the most characters of one text. */
const MOST_ENTRIES = 2000;
const MOST_TEXT = 500_000;

/** A text that grows. It is drawn at most once per frame, and a text that takes long to draw is drawn less often. */
class GrowingText {
  #pause = 0;
  #waits = false;
  text = "";

  constructor(keepEnd, isMarkdown) {
    this.keepEnd = keepEnd;
    this.isMarkdown = isMarkdown;
    this.node = element("div", { class: isMarkdown ? "text markdown" : "text plain" });
  }

  add(text) {
    this.set(this.text + text);
  }

  set(text) {
    this.text = text.length > MOST_TEXT ? `[the beginning is left out]\n${text.slice(-MOST_TEXT / 2)}` : text;
    if (this.#waits) return;
    this.#waits = true;
    if (document.hidden || this.#pause > 16) setTimeout(() => this.#draw(), Math.max(200, this.#pause));
    else requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#waits = false;
    const began = performance.now();
    this.keepEnd(() => {
      if (this.isMarkdown) showMarkdown(this.node, this.text);
      else this.node.textContent = this.text;
    });
    this.#pause = 5 * (performance.now() - began);
  }
}

const KINDS = { user_message: "You", agent_message: "Agent", agent_thought: "Thoughts" };
const PLAN_STATES = { pending: ["", "to do"], in_progress: ["busy", "in progress"], completed: ["good", "done"], cancelled: ["warn", "cancelled"] };
const STOPS = {
  end_turn: "",
  max_tokens: "The agent has stopped at its limit of tokens.",
  max_turn_requests: "The agent has stopped at its limit of requests.",
  refusal: "The agent has refused to continue.",
  cancelled: "Stopped.",
  error: "The turn has ended with an error.",
};

const decodeBase64 = (data, decoder) => {
  try {
    return decoder.decode(Uint8Array.from(atob(data), (char) => char.charCodeAt(0)), { stream: true });
  } catch {
    return "";
  }
};

/**
 * `keepEnd(change)` calls `change`, and keeps the end of the transcript in view if it was there. Events: `change` when `running` or
 * `waiting` has changed; `ask` when the agent asks for a permission; `end` when a turn has ended.
 */
export class Transcript extends EventTarget {
  node = element("div", { class: "transcript", role: "log", "aria-live": "off", "aria-label": "Transcript" });
  /** Whether a turn is running. */
  running = false;
  /** The paths that tool calls have named. */
  paths = new Set();
  #keepEnd;
  /** The message to which the next chunk belongs. */
  #current;
  #messages = new Map();
  #tools = new Map();
  #terminals = new Map();
  #permissions = new Map();
  #plan;

  constructor(keepEnd) {
    super();
    this.#keepEnd = keepEnd;
  }

  /** The number of permission requests that this page can answer. */
  get waiting() {
    return [...this.#permissions.values()].filter(({ answer }) => answer).length;
  }

  clear() {
    this.node.replaceChildren();
    this.running = false;
    this.#current = this.#plan = undefined;
    for (const map of [this.#messages, this.#tools, this.#terminals, this.#permissions]) map.clear();
    this.#changed();
  }

  /** The agent has sent everything again: no turn is running, although prompts have been shown. */
  settled() {
    this.running = false;
    this.#current = this.#plan = undefined;
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  #append(node) {
    this.#keepEnd(() => {
      this.node.append(node);
      while (this.node.childElementCount > MOST_ENTRIES) this.#dropOldest();
    });
    return node;
  }

  /** Removes the oldest entry, unless it is a question. The first entry says so. */
  #dropOldest() {
    if (!this.node.firstElementChild.matches(".cut")) this.node.prepend(element("p", { class: "event cut" }, "Earlier entries are not shown."));
    let oldest = this.node.children[1];
    while (oldest?.matches(".permission:not(.done)")) oldest = oldest.nextElementSibling;
    const last = this.node.lastElementChild;
    if (!oldest || oldest === last) return this.node.children[1].remove();
    for (const map of [this.#messages, this.#tools]) if (map.get(oldest.entry)?.node === oldest) map.delete(oldest.entry);
    for (const node of [oldest, ...oldest.querySelectorAll(".terminal")]) if (this.#terminals.get(node.entry)?.node === node) this.#terminals.delete(node.entry);
    oldest.remove();
    return undefined;
  }

  event(text, kind = "") {
    this.#current = undefined;
    return this.#append(element("p", { class: `event ${kind}` }, plain(text)));
  }

  /** The message of a kind for a chunk. Chunks without an id continue the message before them. */
  #message(kind, id) {
    const key = id === undefined || id === null ? undefined : `${kind} ${id}`;
    const known = key ? this.#messages.get(key) : this.#current?.kind === kind ? this.#current : undefined;
    if (known) return known;
    const body = element("div");
    const isThought = kind === "agent_thought";
    const node = isThought
      ? element("details", { class: "thought" }, element("summary", {}, KINDS[kind]), body)
      : element("article", { class: kind === "user_message" ? "prompt" : "answer" }, element("h2", { class: "visually-hidden" }, KINDS[kind]), body);
    this.#append(node);
    node.entry = key;
    this.#current = { kind, node, body, text: undefined, blocks: 0 };
    if (key) this.#messages.set(key, this.#current);
    return this.#current;
  }

  #addBlock(message, block) {
    const shown = showBlock(block);
    // A message may be without an end, too.
    if (++message.blocks > MOST_ENTRIES && (typeof shown !== "string" || !message.text || message.kind === "user_message")) return;
    if (typeof shown !== "string") {
      message.text = undefined;
      this.#keepEnd(() => message.body.append(shown));
      return;
    }
    // The chunks of a prompt are its blocks, and the history does not say where the next prompt begins.
    if (!message.text || message.kind === "user_message") {
      message.text = new GrowingText(this.#keepEnd, message.kind !== "user_message");
      message.body.append(message.text.node);
    }
    message.text.add(shown);
  }

  /** Shows a prompt of this page. */
  prompt(blocks) {
    this.#current = undefined;
    for (const block of blocks) this.#addBlock(this.#message("user_message"), block);
    this.#current = undefined;
    this.#begin();
  }

  #begin() {
    if (this.running) return;
    this.running = true;
    this.#changed();
  }

  /** Applies a `session/update`. Unknown kinds are left out. */
  apply(update) {
    const kind = update.sessionUpdate;
    const [, base, isChunk] = /^(user_message|agent_message|agent_thought)(_chunk)?$/.exec(kind) ?? [];
    if (base) {
      const message = this.#message(base, update.messageId);
      if (!isChunk) {
        message.body.replaceChildren();
        message.text = undefined;
      }
      for (const block of isChunk ? [update.content] : list(update.content)) this.#addBlock(message, block);
      if (base === "user_message") this.#begin();
      return;
    }
    switch (kind) {
      case "tool_call":
      case "tool_call_update":
        this.#updateTool(update);
        break;
      case "tool_call_content_chunk": {
        const known = this.#tools.get(String(update.toolCallId))?.fields.content ?? [];
        this.#updateTool({ toolCallId: update.toolCallId, content: [...known, update.content] });
        break;
      }
      case "plan":
        this.#updatePlan(update.entries);
        break;
      case "plan_update":
        if (update.plan?.entries) this.#updatePlan(update.plan.entries);
        break;
      case "plan_removed":
        this.#plan = undefined;
        break;
      case "terminal_update":
        this.#updateTerminal(update);
        break;
      case "terminal_output_chunk":
        this.#updateTerminal(update, update.data);
        break;
      case "state_update":
        if (update.state === "idle") this.endTurn(update.stopReason ?? "end_turn", update.error);
        else this.#begin();
        break;
      case "notice":
        this.event([update.title, update.description ?? update.message].filter(Boolean).join(": "));
        break;
      case "permission_resolved":
        this.#resolved(update);
        break;
      case "prompt_received":
        this.prompt(list(update.prompt));
        break;
      case "turn_complete":
        this.endTurn(update.stopReason, update.error);
        break;
      case "client_disconnected":
        this.event("The session's client has left.");
        break;
      default:
    }
  }

  #updateTool(update) {
    const id = String(update.toolCallId);
    let tool = this.#tools.get(id);
    if (!tool) {
      tool = new ToolCall((id) => this.#terminal(id).node);
      tool.node.entry = id;
      this.#tools.set(id, tool);
      this.#append(tool.node);
      this.#current = undefined;
    }
    for (const { path } of list(update.locations)) if (typeof path === "string") this.paths.add(path);
    this.#keepEnd(() => tool.update(update));
  }

  #updatePlan(entries) {
    if (!this.#plan) {
      this.#plan = element("ol");
      this.#append(element("div", { class: "box plan" }, element("h2", {}, "Plan"), this.#plan));
      this.#current = undefined;
    }
    const row = ({ content, status, priority }) => {
      const [look, text] = own(PLAN_STATES, status) ?? PLAN_STATES.pending;
      const state = element("span", { class: `state ${look}` }, element("span", { class: "visually-hidden" }, `${text}: `));
      return element("li", { class: status === "completed" && "done" }, state, `${plain(content)}${priority === "high" ? " (important)" : ""}`);
    };
    this.#keepEnd(() => this.#plan.replaceChildren(...list(entries).map(row)));
  }

  /** A terminal with its box, which is nowhere yet if it is new. */
  #terminal(id) {
    const known = this.#terminals.get(id);
    if (known) return known;
    const text = new GrowingText(this.#keepEnd, false);
    text.node.className = "output mono";
    text.node.tabIndex = 0;
    text.node.setAttribute("role", "group");
    text.node.setAttribute("aria-label", "Output of a terminal");
    const title = element("span", { class: "title" }, `Terminal ${plain(id)}`);
    const state = element("span", { class: "state" }, "its output is not sent to this page");
    const node = element("details", { class: "box tool terminal", open: true }, element("summary", {}, title, state), text.node);
    node.entry = id;
    const terminal = { title, state, text, node, decoder: new TextDecoder() };
    this.#terminals.set(id, terminal);
    return terminal;
  }

  #updateTerminal({ terminalId, command, output, exitStatus }, chunk) {
    const terminal = this.#terminal(String(terminalId));
    if (!terminal.isKnown) {
      terminal.isKnown = true;
      terminal.state.className = "state busy";
      terminal.state.textContent = "running";
    }
    // No tool call has named it yet.
    if (!terminal.node.parentNode) {
      this.#append(terminal.node);
      this.#current = undefined;
    }
    if (command) terminal.title.textContent = plain(command);
    if (output?.data !== undefined) {
      // What follows may begin within the last character of it.
      terminal.decoder = new TextDecoder();
      const text = plain(decodeBase64(output.data, terminal.decoder));
      terminal.text.set(output.truncated ? `[earlier output is left out]\n${text}` : text);
    }
    // A chunk may end within a character.
    if (chunk !== undefined) terminal.text.add(plain(decodeBase64(chunk, terminal.decoder)));
    if (!exitStatus) return;
    const { exitCode, signal } = exitStatus;
    terminal.state.className = `state ${exitCode === 0 ? "good" : "warn"}`;
    terminal.state.textContent = signal ? `killed by ${plain(signal)}` : `exited${exitCode === undefined || exitCode === null ? "" : ` with ${exitCode}`}`;
  }

  /**
   * Shows a permission request. `answer(optionId)` answers it; without it, the page only watches. A request that is shown already
   * can get an `answer`, because this page controls the session from then on.
   */
  permission(params, requestId, answer) {
    const call = params.toolCall ?? params.subject?.toolCall;
    // Whoever approves it sees all of it.
    if (isObject(call) && call.toolCallId !== undefined) this.#updateTool(call);
    const about = params.title ?? call?.title ?? this.#tools.get(String(call?.toolCallId))?.fields.title ?? params.subject?.command;
    const toolCallId = call?.toolCallId;
    // The same request was shown before this page could answer it.
    for (const [known, { node, ...other }] of this.#permissions) {
      const isSame = other.requestId === requestId || (answer && !other.answer && toolCallId !== undefined && other.toolCallId === toolCallId);
      if (!isSame) continue;
      node.remove();
      this.#permissions.delete(known);
    }
    const key = Symbol("permission");
    const state = element("span", { class: "state warn" }, answer ? "your answer is needed" : "waiting for an answer");
    const options = list(params.options);
    const row = element("div", { class: "choices" });
    const node = element(
      "div",
      { class: "box permission", role: "group", "aria-label": "Permission request" },
      element("div", { class: "line" }, element("h2", {}, `Permission: ${visible(about) || "requested"}`), state),
      params.description && element("p", {}, visible(params.description)),
      row,
    );
    const permission = { node, state, row, options, requestId, toolCallId, answer };
    this.#permissions.set(key, permission);
    const choose = (option) => {
      answer(option.optionId);
      this.#settle(key, `answered: ${visible(option.name)}`);
      this.dispatchEvent(new Event("answered"));
    };
    const dismiss = () => {
      answer();
      this.#settle(key, "dismissed");
    };
    row.append(
      ...options.map((option) =>
        answer
          ? element("button", { type: "button", class: /^allow/.test(option.kind) ? "primary" : "", onclick: () => choose(option) }, visible(option.name ?? option.optionId))
          : element("span", { class: "option" }, visible(option.name ?? option.optionId)),
      ),
    );
    if (answer && !options.length) row.append(element("button", { type: "button", onclick: dismiss }, "Dismiss"));
    this.#append(node);
    this.#current = undefined;
    this.#begin();
    this.#changed();
    if (answer) this.dispatchEvent(new CustomEvent("ask", { detail: { text: visible(about) || "a permission" } }));
  }

  #settle(key, text) {
    const permission = this.#permissions.get(key);
    if (!permission) return;
    this.#permissions.delete(key);
    permission.node.classList.add("done");
    permission.row.remove();
    permission.state.className = "state";
    permission.state.textContent = text;
    this.#changed();
  }

  /** Another client has answered, or the agent has withdrawn the request. */
  #resolved({ toolCallId, requestId, chosenOptionId, resolvedBy }) {
    const all = [...this.#permissions];
    const found = all.find(([, one]) => one.requestId === requestId) ?? all.find(([, one]) => toolCallId !== undefined && one.toolCallId === toolCallId);
    const key = found?.[0];
    const option = this.#permissions.get(key)?.options.find(({ optionId }) => optionId === chosenOptionId);
    const by = isObject(resolvedBy) ? (resolvedBy.principal ?? resolvedBy.name ?? resolvedBy.clientId) : resolvedBy;
    this.#settle(key, `answered${option ? `: ${visible(option.name)}` : ""}${by ? `, by ${plain(by)}` : ""}`);
  }

  /** Answers what waits for this page: the turn is to stop. */
  cancelPermissions() {
    for (const [key, { answer }] of [...this.#permissions]) {
      if (!answer) continue;
      answer();
      this.#settle(key, "cancelled");
    }
  }

  /** A request to this page is not to be answered any more. The update that says who has answered may come before or after it. */
  withdraw(requestId) {
    for (const permission of this.#permissions.values()) {
      if (permission.requestId !== requestId || !permission.answer) continue;
      permission.answer = undefined;
      permission.row.remove();
      permission.state.textContent = "no longer needed";
      this.#changed();
    }
  }

  endTurn(reason, error) {
    for (const key of [...this.#permissions.keys()]) this.#settle(key, reason === "cancelled" ? "cancelled" : "the turn ended before an answer");
    this.#current = this.#plan = undefined;
    const text = error ? `The turn has failed: ${error.message ?? JSON.stringify(error)}` : (own(STOPS, reason) ?? `The turn has ended: ${plain(reason ?? "unknown")}`);
    if (text) this.event(text, error ? "bad" : "");
    const wasRunning = this.running;
    this.running = false;
    this.#changed();
    if (wasRunning) this.dispatchEvent(new Event("end"));
  }
}
