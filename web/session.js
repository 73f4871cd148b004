// Shows what happens in a session of an agent, as it happens. The page only watches: it sends no message.
//
// The address is the agent's path with `#session=ID`. The server sends the agent's notifications for the session, in version 1 or
// version 2 of the Agent Client Protocol. It does not repeat earlier ones.

import { api, askForToken, delay, element, fragment, request, serverUrl, session, socketProtocols, socketUrl, token } from "./common.js";
import { plain } from "./view.js";

const $ = (id) => document.getElementById(id);

/** The most entries that the transcript keeps, and the most characters of one entry. */
const MOST_ENTRIES = 2000;
const MOST_TEXT = 500_000;

// --- Text ------------------------------------------------------------------------------------------------------------

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const list = (value) => (Array.isArray(value) ? value.filter(isObject) : []);

const json = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** A content block as text. */
function blockText(block) {
  if (!isObject(block)) return "";
  switch (block.type) {
    case "text":
      return plain(block.text);
    case "resource_link":
      return `[${plain(block.title ?? block.name ?? block.uri)}: ${plain(block.uri)}]`;
    case "resource":
      return block.resource?.text === undefined
        ? `[${plain(block.resource?.uri ?? "resource")}]`
        : `${plain(block.resource.uri)}\n${plain(block.resource.text)}`;
    default:
      return `[${plain(block.type ?? "content")}${block.mimeType ? ` ${plain(block.mimeType)}` : ""}]`;
  }
}

/** Text with `code` and **strong** words as elements. */
function inline(text) {
  return text
    .split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)
    .map((part, index) =>
      index % 2 === 0
        ? part
        : part.startsWith("`")
          ? element("code", {}, part.slice(1, -1))
          : element("strong", {}, part.slice(2, -2)),
    );
}

/** Shows text, with a box around the lines between two lines of three backticks. */
function fillText(node, text) {
  const parts = text.split(/^```[^\n]*\n?/m);
  node.replaceChildren(
    ...parts.flatMap((part, index) =>
      index % 2
        ? element("pre", { tabindex: "0" }, part.replace(/\n$/, ""))
        : inline(part.replace(index ? /^\n/ : /^$/, "").replace(index < parts.length - 1 ? /\n\n$/ : /^$/, "\n")),
    ),
  );
}

/** A string that grows, drawn at most once per frame. */
class GrowingText {
  constructor() {
    this.node = element("div", { class: "text" });
    this.text = "";
  }

  add(text) {
    this.set(this.text + text);
  }

  set(text) {
    this.text = text.length > MOST_TEXT ? `[the beginning is left out]\n${text.slice(-MOST_TEXT / 2)}` : text;
    if (this.drawing) return;
    this.drawing = true;
    const draw = () => {
      this.drawing = false;
      keepEnd(() => fillText(this.node, this.text));
    };
    if (document.hidden) setTimeout(draw, 200);
    else requestAnimationFrame(draw);
  }
}

// --- The transcript --------------------------------------------------------------------------------------------------

const atEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 48;

/** Changes the page, and stays at its end if it was there. */
function keepEnd(change) {
  const stays = atEnd();
  change();
  if (stays) scrollTo(0, document.documentElement.scrollHeight);
  $("latest").hidden = stays || atEnd();
}

/** Appends an entry to the transcript. */
function append(node) {
  keepEnd(() => {
    $("empty").hidden = true;
    $("transcript").append(node);
    while ($("transcript").childElementCount > MOST_ENTRIES) $("transcript").firstElementChild.remove();
  });
  return node;
}

const appendEvent = (text, kind = "") => append(element("div", { class: `event ${kind}` }, element("span", {}, plain(text))));

/** The message to which the next chunk belongs, and all messages, tool calls, plans and permission requests by their ids. */
let current;
const messages = new Map();
const tools = new Map();
const terminals = new Map();
const permissions = new Map();
let plan;

/** Forgets what later updates could change. It stays on the page. */
function forget() {
  current = undefined;
  plan = undefined;
  for (const map of [messages, tools, terminals, permissions]) map.clear();
}

const MESSAGES = { user_message: "Prompt", agent_message: "Agent", agent_thought: "Thought" };

/** The message of a kind for a chunk. Chunks without an id continue the message before them. */
function message(kind, id) {
  const key = id === undefined || id === null ? undefined : `${kind} ${id}`;
  const known = key ? messages.get(key) : current?.kind === kind ? current : undefined;
  if (known) return known;
  const text = new GrowingText();
  const time = element("time", {}, new Date().toLocaleTimeString(undefined, { hour12: false }));
  append(
    kind === "agent_thought"
      ? element("details", { class: "thought", open: true }, element("summary", {}, "Thought"), text.node)
      : element(
          "div",
          { class: kind === "user_message" ? "prompt" : "answer" },
          element("p", { class: "who" }, `${MESSAGES[kind]}, `, time),
          text.node,
        ),
  );
  current = { kind, text };
  if (key) messages.set(key, current);
  return current;
}

const TOOL_STATES = {
  pending: ["", "pending"],
  in_progress: ["busy", "in progress"],
  paused: ["warn", "paused"],
  completed: ["good", "completed"],
  failed: ["bad", "failed"],
  cancelled: ["warn", "cancelled"],
};

/** The content of a tool call: text, a diff, or a terminal. */
function toolContent(content) {
  switch (content.type) {
    case "content":
      return element("div", { class: "output text", tabindex: "0" }, blockText(content.content));
    case "diff": {
      const box = element("div", { class: "output", tabindex: "0" });
      if (content.patch?.text ?? content.patch?.data) {
        for (const line of plain(content.patch.text ?? content.patch.data).split("\n"))
          box.append(
            element("div", { class: line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : undefined }, line || " "),
          );
        return box;
      }
      box.append(element("div", { class: "faint" }, plain(content.path ?? json(content.changes ?? ""))));
      const lines = (text) => (text === undefined || text === null ? [] : plain(text).replace(/\n$/, "").split("\n"));
      const [before, after] = [lines(content.oldText), lines(content.newText)];
      let start = 0;
      while (start < before.length && start < after.length && before[start] === after[start]) start++;
      let end = 0;
      while (end < before.length - start && end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end++;
      const add = (kind, mark, all) => {
        for (const line of all.slice(0, 500)) box.append(element("div", { class: kind }, `${mark} ${line}`));
      };
      add("", " ", before.slice(Math.max(0, start - 3), start));
      add("minus", "-", before.slice(start, before.length - end));
      add("plus", "+", after.slice(start, after.length - end));
      add("", " ", after.slice(after.length - end, after.length - end + 3));
      return box;
    }
    case "terminal":
      return element("p", {}, "Terminal ", element("code", {}, plain(content.terminalId)));
    default:
      return element("div", { class: "output" }, plain(json(content)));
  }
}

/** Shows a new tool call, or applies an update to a known one. Fields that an update leaves out stay. */
function updateTool(update) {
  const id = String(update.toolCallId);
  let tool = tools.get(id);
  if (!tool) {
    tool = {
      fields: {},
      title: element("h2"),
      state: element("span"),
      about: element("p", { class: "faint" }),
      body: element("div"),
      raw: element("div", { class: "output text", tabindex: "0" }),
    };
    tool.details = element("details", {}, element("summary", {}, "Input and output"), tool.raw);
    tool.node = element(
      "div",
      { class: "box tool" },
      element("div", { class: "line" }, tool.title, tool.state),
      tool.about,
      tool.body,
      tool.details,
    );
    tools.set(id, tool);
    append(tool.node);
    current = undefined;
  }
  for (const [name, value] of Object.entries(update)) if (value !== null && value !== undefined) tool.fields[name] = value;
  const { fields } = tool;
  keepEnd(() => {
    tool.title.textContent = plain(fields.title ?? fields.name ?? "Tool call");
    const [look, text] = TOOL_STATES[fields.status] ?? ["busy", String(fields.status ?? "pending")];
    tool.state.className = `state ${look}`;
    tool.state.textContent = text;
    const places = list(fields.locations).map(({ path, line }) =>
      plain(line === undefined || line === null ? path : `${path}:${line}`),
    );
    tool.about.textContent = [fields.kind, ...places].filter(Boolean).join(", ");
    tool.about.hidden = !tool.about.textContent;
    if ("content" in update) tool.body.replaceChildren(...list(fields.content).map(toolContent));
    const raw = [fields.rawInput, fields.rawOutput]
      .filter((value) => value !== undefined)
      .map(json)
      .join("\n\n");
    tool.raw.textContent = plain(raw).slice(0, MOST_TEXT);
    tool.details.hidden = !raw;
  });
  return tool;
}

const PLAN_STATES = { pending: "", in_progress: "busy", completed: "good", cancelled: "warn" };

function updatePlan(entries) {
  if (!plan) {
    plan = element("ul");
    append(element("div", { class: "box" }, element("h2", {}, "Plan"), plan));
    current = undefined;
  }
  keepEnd(() =>
    plan.replaceChildren(
      ...list(entries).map(({ content, status, priority }) =>
        element(
          "li",
          { class: status === "completed" ? "done-entry" : undefined },
          element(
            "span",
            { class: `state ${PLAN_STATES[status] ?? ""}` },
            element("span", { class: "visually-hidden" }, `${plain(status)}: `),
          ),
          `${plain(content)}${priority === "high" ? " (high priority)" : ""}`,
        ),
      ),
    ),
  );
}

function showPermission(params) {
  const call = params.toolCall ?? params.subject?.toolCall;
  if (isObject(call) && call.toolCallId !== undefined && (call.title || tools.has(String(call.toolCallId)))) updateTool(call);
  const about =
    params.title ?? call?.title ?? tools.get(String(call?.toolCallId))?.fields.title ?? params.subject?.command ?? "";
  const state = element("span", { class: "state warn" }, "waiting for an answer");
  const node = element(
    "div",
    { class: "box permission" },
    element("div", { class: "line" }, element("h2", {}, `Permission: ${plain(about) || "requested"}`), state),
    params.description && element("p", {}, plain(params.description)),
    element(
      "p",
      { class: "faint" },
      `Options: ${list(params.options)
        .map(({ name, optionId }) => plain(name ?? optionId))
        .join(", ")}`,
    ),
  );
  append(node);
  current = undefined;
  permissions.set(String(call?.toolCallId ?? permissions.size), { node, state, options: list(params.options) });
}

function resolvePermission(id, text) {
  const permission = permissions.get(id);
  if (!permission) return;
  permissions.delete(id);
  permission.node.classList.add("done");
  permission.state.className = "state";
  permission.state.textContent = text;
}

/** Nothing waits for an answer any more, but nobody has told how it was answered. */
function settlePermissions(text = "answered") {
  for (const id of [...permissions.keys()]) resolvePermission(id, text);
}

const decoder = new TextDecoder();
const decodeBase64 = (data) => {
  try {
    return decoder.decode(Uint8Array.from(atob(data), (char) => char.charCodeAt(0)));
  } catch {
    return "";
  }
};

function updateTerminal({ terminalId, command, output, exitStatus }, chunk) {
  let terminal = terminals.get(terminalId);
  if (!terminal) {
    terminal = { title: element("h2"), state: element("span", { class: "state busy" }, "running"), text: new GrowingText() };
    terminal.text.node.className = "output text";
    terminal.text.node.tabIndex = 0;
    append(
      element("div", { class: "box" }, element("div", { class: "line" }, terminal.title, terminal.state), terminal.text.node),
    );
    terminals.set(terminalId, terminal);
    current = undefined;
  }
  if (command) terminal.title.textContent = plain(command);
  if (!terminal.title.textContent) terminal.title.textContent = `Terminal ${plain(terminalId)}`;
  if (output?.data !== undefined) terminal.text.set(plain(decodeBase64(output.data)));
  if (chunk !== undefined) terminal.text.add(plain(decodeBase64(chunk)));
  if (exitStatus) {
    const { exitCode, signal } = exitStatus;
    terminal.state.className = `state ${exitCode === 0 ? "good" : "warn"}`;
    terminal.state.textContent = signal
      ? `killed by ${plain(signal)}`
      : `exited${exitCode === undefined || exitCode === null ? "" : ` with ${exitCode}`}`;
  }
}

const STOPS = {
  end_turn: "the turn has ended",
  max_tokens: "the turn has ended at the limit of tokens",
  max_turn_requests: "the turn has ended at the limit of requests",
  refusal: "the agent refused to continue",
  cancelled: "the turn was cancelled",
  error: "the turn has ended with an error",
};

function endTurn(reason, error) {
  settlePermissions(reason === "cancelled" ? "cancelled" : "answered");
  current = undefined;
  plan = undefined;
  appendEvent(
    error ? `the turn has failed: ${error.message ?? json(error)}` : (STOPS[reason] ?? `the turn has ended: ${reason ?? ""}`),
  );
}

/** Applies a `session/update`. Unknown kinds are left out. */
function applyUpdate(update) {
  const kind = update.sessionUpdate;
  const [, base, isChunk] = /^(user_message|agent_message|agent_thought)(_chunk)?$/.exec(kind) ?? [];
  if (base) {
    const { text } = message(base, update.messageId);
    if (isChunk) text.add(blockText(update.content));
    else if (Array.isArray(update.content)) text.set(update.content.map(blockText).join("\n"));
    return;
  }
  switch (kind) {
    case "tool_call":
    case "tool_call_update":
      updateTool(update);
      break;
    case "tool_call_content_chunk": {
      const known = tools.get(String(update.toolCallId))?.fields.content ?? [];
      updateTool({ toolCallId: update.toolCallId, content: [...known, update.content] });
      break;
    }
    case "plan":
      updatePlan(update.entries);
      break;
    case "plan_update":
      if (update.plan?.entries) updatePlan(update.plan.entries);
      break;
    case "plan_removed":
      plan = undefined;
      break;
    case "terminal_update":
      updateTerminal(update);
      break;
    case "terminal_output_chunk":
      updateTerminal(update, update.data);
      break;
    case "state_update":
      if (update.state === "idle") endTurn(update.stopReason ?? "end_turn", update.error);
      break;
    case "available_commands_update":
      appendEvent(
        `commands: ${
          list(update.availableCommands)
            .map(({ name }) => `/${name}`)
            .join(", ") || "none"
        }`,
      );
      break;
    case "current_mode_update":
      appendEvent(`mode: ${update.currentModeId}`);
      break;
    case "session_info_update":
      if (update.title) showTitle(update.title);
      break;
    case "notice":
      appendEvent([update.title, update.description].filter(Boolean).join(": "));
      break;
    case "permission_resolved": {
      const id = String(update.toolCallId);
      const option = permissions.get(id)?.options.find(({ optionId }) => optionId === update.chosenOptionId);
      const by = isObject(update.resolvedBy) ? update.resolvedBy.name : update.resolvedBy;
      resolvePermission(id, `answered${option ? `: ${plain(option.name)}` : ""}${by ? `, by ${plain(by)}` : ""}`);
      break;
    }
    case "turn_complete":
      endTurn(update.stopReason, update.error);
      break;
    case "client_disconnected":
      appendEvent("the session's client has left");
      break;
    default:
  }
}

let ended = false;

function receive(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    return;
  }
  if (!isObject(data)) return;
  const params = isObject(data.params) ? data.params : {};
  switch (data.method) {
    case "_outrigger/watching":
      showPeople(list(params.connectedClients));
      break;
    case "session/update":
      if (isObject(params.update)) applyUpdate(params.update);
      break;
    case "session/request_permission":
      showPermission(params);
      break;
    case "_outrigger/session_ended":
      ended = true;
      settlePermissions("not answered");
      appendEvent("the session has ended", "end");
      break;
    default:
  }
}

// --- The connection --------------------------------------------------------------------------------------------------

let sessionId = "";
/** The answer of /.outrigger/session. */
let identity;

function showTitle(text) {
  $("title").textContent = plain(text);
  document.title = `${plain(text)} - Outrigger`;
}

function showPeople(clients) {
  const names = clients.map(
    ({ name, title, role }) =>
      `${plain(title ?? name ?? "a client")}${role === "controller" ? " controls the session" : role ? ` (${plain(role)})` : ""}`,
  );
  $("people").textContent =
    `${names.length ? names.join(", ") : "No client controls the session now"}. You only watch.`.replace(/^a/, "A");
}

function showState(state, text) {
  $("connection").dataset.state = state;
  if ($("connection-text").textContent !== text) $("connection-text").textContent = text;
}

/** Asks which session to watch. */
function askForSession(reason) {
  showTitle("Watch a session");
  $("connection").hidden = true;
  $("ask").hidden = false;
  $("ask-reason").textContent = reason ?? "";
  $("ask-reason").hidden = !reason;
  $("ask-id").value = sessionId;
  $("ask-id").focus();
  return new Promise((resolve) => {
    $("ask").addEventListener(
      "submit",
      (event) => {
        event.preventDefault();
        $("ask").hidden = true;
        $("connection").hidden = false;
        const id = $("ask-id").value.trim();
        fragment.set("session", id);
        history.replaceState(null, "", serverUrl(`${location.pathname}${location.search}#session=${encodeURIComponent(id)}`));
        resolve(id);
      },
      { once: true },
    );
  });
}

/** A link of this page's own, with which it watches where its token is not enough. Revoked when the page is left. */
let link;

/** Makes such a link. Returns whether the server permits that. */
async function makeLink() {
  if (!identity?.auth || identity.scope !== "all") return false;
  try {
    link = await api("/.outrigger/links", {
      method: "POST",
      body: { path: location.pathname, session: sessionId, ttl_s: 86_400 },
    });
    return true;
  } catch {
    return false;
  }
}
addEventListener("pagehide", () => {
  if (link) request(`/.outrigger/links/${encodeURIComponent(link.id)}`, { method: "DELETE", keepalive: true }).catch(() => {});
});

/** Watches until the connection ends. Resolves with `{opened, watched, code, reason}`. */
function watch() {
  return new Promise((resolve) => {
    const protocols = link ? ["outrigger", `outrigger.token.${link.token}`] : socketProtocols();
    const socket = new WebSocket(socketUrl(`${location.pathname}?watch=${encodeURIComponent(sessionId)}`), protocols);
    let opened = false;
    let watched = false;
    socket.addEventListener("open", () => {
      opened = true;
    });
    socket.addEventListener("message", ({ data }) => {
      if (!watched) {
        // The server refuses a session by closing the connection at once. The first message says that it does not.
        watched = true;
        goneSince = undefined;
        showState("live", "watching");
        $("empty").hidden = $("transcript").childElementCount > 0;
      }
      if (typeof data === "string") receive(data);
      // Nothing follows, even if the server leaves the connection open.
      if (ended) socket.close(1000);
    });
    socket.addEventListener("close", ({ code, reason }) => resolve({ opened, watched, code, reason: plain(reason) }));
  });
}

/** Learns why a handshake failed: a page sees no status. Returns a reason that is final, or undefined to try again. */
async function diagnose() {
  try {
    identity = await session();
    if (identity?.only && identity.only.session !== sessionId) return { reason: "This link is for another session." };
    await request(`${location.pathname}?watch=${encodeURIComponent(sessionId)}`, { headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.status === 401) {
      await askForToken(token() ? "The server does not accept the token of this page." : undefined);
      return undefined;
    }
    if ([403, 404, 410].includes(error.status)) return { reason: error.message };
    if (error.status === 0) showGone("the server does not answer");
  }
  return undefined;
}

let goneSince;
function showGone(text) {
  goneSince ??= new Date();
  showState("gone", `${text} since ${goneSince.toLocaleTimeString(undefined, { hour12: false })}, trying again`);
}

async function main() {
  sessionId = fragment.get("session") ?? "";
  for (;;) {
    try {
      identity = await session();
      sessionId ||= identity?.only?.session ?? "";
      break;
    } catch (error) {
      if (error.status === 401) await askForToken(token() ? "The server does not accept the token of this page." : undefined);
      else {
        showGone("the server does not answer");
        await delay(2000);
      }
    }
  }
  if (!sessionId) sessionId = await askForSession();
  let wait = 500;
  for (;;) {
    showTitle(sessionId);
    if (!goneSince) showState("", "connecting");
    const { opened, watched, code, reason } = await watch();
    if (opened && !watched && code === 1008) {
      if (!link && (await makeLink())) continue;
      link = undefined;
      goneSince = undefined;
      sessionId = await askForSession(reason);
      continue;
    }
    if (watched) {
      wait = 500;
      forget();
      // 1008: the server does not want this client any more. 1000: the session is over.
      if (ended || code === 1000 || code === 1008) {
        showState("", ended || code === 1000 ? "the session has ended" : "disconnected");
        if (!ended) appendEvent(code === 1000 ? reason || "the session has ended" : `disconnected: ${reason || code}`, "end");
        return;
      }
      showGone(reason ? `disconnected (${reason})` : "the connection was lost");
      appendEvent("the connection was lost; what happened before it came back is not shown");
    } else {
      link = undefined;
      const final = await diagnose();
      if (final) {
        goneSince = undefined;
        sessionId = await askForSession(final.reason);
        continue;
      }
    }
    await delay(wait);
    wait = Math.min(10_000, wait * 2);
  }
}

$("latest").addEventListener("click", () => {
  scrollTo(0, document.documentElement.scrollHeight);
  $("latest").hidden = true;
});
addEventListener(
  "scroll",
  () => {
    if (atEnd()) $("latest").hidden = true;
  },
  { passive: true },
);
main();
