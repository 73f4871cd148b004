// The page of an agent: its sessions, and work in one of them. See docs/browser.md.
//
// The address is the agent's path. `#session=ID` opens a session, and with `&mode=viewer` the page only watches it.

import { AgentClient } from "./agent_client.js";
import { Composer } from "./agent_composer.js";
import { canNotify, notify, onNotificationTouched } from "./agent_notify.js";
import { ownSessions, SessionView } from "./agent_session.js";
import { list } from "./agent_tools.js";
import { $, api, askForToken, delay, element, field, fragment, pagePath, serverUrl, session, token } from "./common.js";
import { makeDialog, note, plain, setHidden, setText, showDialog } from "./view.js";

/** The most sessions that are listed. */
const MOST_SESSIONS = 5000;
/** How often the list of sessions is read again while the page is visible. */
const REFRESH = 15_000;
/** When the agent has not answered `initialize` for this long, the page says so. */
const PATIENCE = 5000;
/** The agent wants its user to sign in first. */
const AUTH_REQUIRED = -32000;
const DIRECTORY = `outrigger.directory ${location.pathname}`;

/** The answer of /.outrigger/session. */
let identity;
let client;
/** The sessions that this page has opened, by their ids. */
const views = new Map();
/** The session that is shown. */
let view;
/** The sessions that the agent and the server know. */
let known = [];

// --- The transcript's place ------------------------------------------------------------------------------------------

const atEnd = () => $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 64;
const toEnd = () => { $("scroll").scrollTop = $("scroll").scrollHeight; };

/** Changes the transcript, and stays at its end if it was there. */
function keepEnd(change) {
  change();
  // Where the end is, is asked once for all changes of a frame.
  if (settles) return;
  settles = true;
  const settle = () => {
    settles = false;
    if (follows) toEnd();
    setHidden($("latest"), follows);
  };
  if (document.hidden) setTimeout(settle, 200);
  else requestAnimationFrame(settle);
}
let settles = false;
/** Whether the end is in view, and stays there. */
let follows = true;
// A picture gets its size later, and a keyboard takes room.
new ResizeObserver(() => follows && toEnd()).observe($("scroll"));
$("scroll").addEventListener("load", () => follows && toEnd(), true);
$("scroll").addEventListener(
  "scroll",
  () => {
    if (settles) return;
    follows = atEnd();
    setHidden($("latest"), follows);
  },
  { passive: true },
);
$("latest").addEventListener("click", () => {
  follows = true;
  toEnd();
});

// --- The state -------------------------------------------------------------------------------------------------------

function showConnection(state, text) {
  $("connection").dataset.state = state;
  setText($("connection-text"), text);
}

let lostSince;
function showLost(given) {
  const reason = navigator.onLine ? given : "this device is offline";
  lostSince ??= new Date().toLocaleTimeString(undefined, { hour12: false });
  showConnection("gone", `offline since ${lostSince}${reason ? `, ${plain(reason)}` : ""}, trying again`);
}
function showFound() {
  lostSince = undefined;
  showState();
}

const announce = (text) => { $("announce").textContent = text; };

/** What the connection's line says of the session that is shown. */
function stateOf({ role, running, transcript }) {
  if (role === "opening") return ["", "opening"];
  if (role === "ended") return ["", "the session has ended"];
  if (role === "failed") return ["", "not available"];
  if (transcript.waiting) return ["wait", "your answer is needed"];
  if (role === "viewer" || role === "observer") return ["live", "watching"];
  return running ? ["busy", "working"] : ["live", "connected"];
}

/** A select for something that the agent lets its user choose. */
function chooser(label, items, current, choose) {
  const select = element("select", { "aria-label": label, title: label }, items.map(({ value, name }) => element("option", { value, selected: value === current }, plain(name ?? value))));
  select.addEventListener("change", async () => {
    select.disabled = true;
    await choose(select.value).catch(({ message }) => note(message, true));
    showState();
    // The element is a new one.
    const selects = [...$("settings").querySelectorAll("select")];
    selects.find(({ title }) => title === label)?.focus();
  });
  return select;
}

function showSettings() {
  const { modes, models, options, role } = view ?? {};
  const key = JSON.stringify([view?.id, modes, models, options, role]);
  if ($("settings").shown === key && !$("settings").querySelector(":disabled")) return;
  $("settings").shown = key;
  const all = [];
  const chooses = role === "controller";
  if (chooses && options?.length) {
    for (const option of options) {
      const isBoolean = option.type === "boolean";
      const items = isBoolean ? [{ value: "true", name: `${option.name}: on` }, { value: "false", name: `${option.name}: off` }] : list(option.options).flatMap((one) => (one.options ? list(one.options) : one));
      all.push(chooser(plain(option.name), items, isBoolean ? String(option.currentValue) : option.currentValue, (value) => view.choose("option", isBoolean ? value === "true" : value, option)));
    }
  } else if (chooses) {
    if (modes) all.push(chooser("Mode", list(modes.availableModes).map(({ id, name }) => ({ value: id, name })), modes.currentModeId, (id) => view.choose("mode", id)));
    if (models) all.push(chooser("Model", list(models.availableModels).map(({ modelId, name }) => ({ value: modelId, name })), models.currentModelId, (id) => view.choose("model", id)));
  }
  $("settings").replaceChildren(...all);
}

const nameOf = (one) => plain(one?.title || one?.id || "");

function showState() {
  if (!lostSince) showConnection(...(view ? stateOf(view) : client?.agent ? ["live", "connected"] : ["", "connecting"]));
  const waiting = [...views.values()].reduce((sum, { transcript }) => sum + transcript.waiting, 0);
  const title = view ? nameOf(view.title ? view : { id: view.id, title: known.find(({ sessionId }) => sessionId === view.id)?.title }) : "Sessions";
  setText($("title"), title);
  const agent = plain(client?.agent?.agentInfo?.title ?? client?.agent?.agentInfo?.name ?? "Agent");
  document.title = `${waiting ? "(!) " : view?.running ? "… " : ""}${title} - ${agent} - Outrigger`;
  setText($("agent-name"), agent);
  const watches = view && ["observer", "viewer"].includes(view.role);
  setHidden($("watching"), !watches);
  const who = view?.controller ? `${view.controller} controls this session.` : "No client controls this session.";
  if (watches) setText($("watching-text"), `You are watching. ${who}${identity?.only?.answers ? " With your link, you may answer its permission requests." : ""}`);
  setHidden($("take-over"), !(watches && client?.agent && identity?.scope !== "watch" && fragment.get("mode") !== "viewer"));
  setHidden($("share"), !(view && identity?.auth && identity.scope === "all" && view.role !== "failed"));
  setHidden($("notify"), !(view && canNotify && Notification.permission === "default"));
  const { used, size } = view?.usage ?? {};
  const hasUsage = Number.isFinite(used) && Number.isFinite(size) && size > 0;
  setHidden($("people"), !hasUsage);
  if (hasUsage) setText($("people"), `${Math.round((100 * used) / size)} % of the agent's context is used`);
  const text = !view ? "Choose a session, or begin a new one." : view.role === "failed" ? (view.reason ?? "The session is not there.") : view.isCut ? "Earlier messages are no longer kept." : "";
  const isEmpty = view?.role === "controller" && !view.transcript.node.childElementCount;
  setText($("empty"), isEmpty && !text ? "Ask the agent for something." : text);
  setHidden($("empty"), !(text || isEmpty));
  showSettings();
  composer.show();
  showSessions();
}

// --- The list of sessions --------------------------------------------------------------------------------------------

/** The sessions that the agent lists, those of this tab, and those of the same owner on the server. */
async function refresh() {
  const all = new Map();
  const add = (one) => all.set(one.sessionId, { ...all.get(one.sessionId), ...Object.fromEntries(Object.entries(one).filter(([, value]) => value)) });
  for (const one of ownSessions()) add(one);
  setHidden($("new"), !client || identity?.scope === "watch" || fragment.get("mode") === "viewer");
  const methods = [client?.agent?.agentCapabilities?.sessionCapabilities?.list && "session/list", client?.agent && "_outrigger/sessions"];
  for (const method of methods.filter(Boolean)) for (const one of await allSessions(method)) add(one);
  known = [...all.values()].sort((a, b) => String(b.updatedAt ?? "").localeCompare(String(a.updatedAt ?? "")));
  showSessions();
}

/** What a method lists, page by page. */
async function allSessions(method) {
  const all = [];
  let cursor;
  do {
    const page = await client.request(method, cursor ? { cursor } : {}).catch(() => ({}));
    all.push(...list(page.sessions).filter(({ sessionId }) => typeof sessionId === "string"));
    cursor = typeof page.nextCursor === "string" && page.nextCursor !== cursor ? page.nextCursor : undefined;
  } while (cursor && all.length < MOST_SESSIONS);
  return all;
}

const directoryOfAgent = () => client?.about?.directory ?? "";

function showSessions() {
  const all = [...views.keys()].filter((id) => views.get(id).role !== "failed" && !known.some(({ sessionId }) => sessionId === id)).map((sessionId) => ({ sessionId }));
  const items = [...all, ...known].map(({ sessionId, title, cwd, updatedAt }) => {
    const open = views.get(sessionId);
    const mark = open?.transcript.waiting ? "needs you" : open?.running ? "working" : "";
    return { sessionId, name: plain(open?.title || title || sessionId), about: [plain(open?.directory || cwd || ""), updatedAt && new Date(updatedAt).toLocaleString()].filter(Boolean).join(", "), mark, isCurrent: view?.id === sessionId };
  });
  const key = JSON.stringify(items);
  setHidden($("no-sessions"), items.length > 0 || !client);
  if ($("sessions").shown === key) return;
  $("sessions").shown = key;
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.id : undefined;
  $("sessions").replaceChildren(
    ...items.map(({ sessionId, name, about, mark, isCurrent }) =>
      element(
        "li",
        {},
        element(
          "button",
          { type: "button", "data-id": sessionId, "aria-current": isCurrent ? "true" : undefined, onclick: () => { showList(false); openSession(sessionId); } },
          element("span", { class: "name" }, name),
          about && element("small", {}, about),
          mark && element("small", { class: "mark" }, mark),
        ),
      ),
    ),
  );
  if (focused) [...$("sessions").querySelectorAll("button")].find(({ dataset }) => dataset.id === focused)?.focus();
}

function showList(isShown) {
  document.body.classList.toggle("list", isShown);
  $("work").inert = isShown;
  $("open-list").setAttribute("aria-expanded", String(isShown));
  if (isShown) $("close-list").focus();
  else if (document.activeElement?.closest("#sidebar")) composer.focus();
}
$("open-list").addEventListener("click", () => showList(true));
$("close-list").addEventListener("click", () => showList(false));
addEventListener("keydown", ({ key }) => {
  if (key === "Escape" && document.body.classList.contains("list")) showList(false);
});

// --- Sessions --------------------------------------------------------------------------------------------------------

function addView(id) {
  const made = new SessionView(id, client, (change) => (view === made ? keepEnd(change) : change()));
  made.addEventListener("change", showState);
  made.addEventListener("connection", ({ detail }) => (detail.state === "gone" ? showLost(detail.text) : showFound()));
  made.addEventListener("ask", ({ detail }) => tell(`The agent asks for permission: ${detail.text}`, made));
  made.addEventListener("answered", () => composer.focus());
  made.addEventListener("end", () => tell("The agent has finished.", made));
  views.set(id, made);
  return made;
}

/** Tells somebody who does not look at the page, and screen readers. */
function tell(text, about) {
  announce(text);
  if (document.hidden) notify(nameOf(about), text, about?.id);
}

function show(one) {
  view?.transcript.node.remove();
  view = one;
  fragment.set("session", one.id);
  const mode = fragment.get("mode");
  history.replaceState(null, "", serverUrl(`${pagePath}${location.search}#session=${encodeURIComponent(one.id)}${mode ? `&mode=${encodeURIComponent(mode)}` : ""}`));
  $("scroll").append(one.transcript.node);
  follows = true;
  showState();
  toEnd();
  composer.focus();
}

async function openSession(id) {
  const there = views.get(id);
  if (there && there.role !== "failed" && there.role !== "ended") return show(there);
  there?.close();
  const made = addView(id);
  made.directory ||= known.find(({ sessionId }) => sessionId === id)?.cwd ?? directoryOfAgent();
  show(made);
  if (client) await made.open({ viewOnly: fragment.get("mode") === "viewer" });
  else await made.view();
  showState();
  toEnd();
  composer.focus();
}

$("take-over").addEventListener("click", async () => {
  const taken = view;
  if (!(await taken.takeOver())) note(taken.reason, true);
});

/** Asks for the directory of a new session. */
async function askForDirectory() {
  let last = "";
  try {
    last = localStorage.getItem(DIRECTORY) ?? "";
  } catch { /* the browser keeps nothing */ }
  const input = element("input", { id: "directory", required: true, value: last || directoryOfAgent() || "/", autocapitalize: "off", autocomplete: "off", spellcheck: false, pattern: "(/|[A-Za-z]:).*", title: "an absolute path" });
  const form = element(
    "form",
    { method: "dialog" },
    element("label", { for: "directory" }, "Directory on the agent's machine"),
    input,
    element("div", { class: "actions" }, element("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), element("button", { class: "primary" }, "Begin")),
  );
  // `form-action 'none'` forbids to submit the form. It is never submitted.
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close(input.value.trim());
  });
  const dialog = makeDialog("New session", form);
  const directory = await showDialog(dialog);
  try {
    if (directory) localStorage.setItem(DIRECTORY, directory);
  } catch { /* the browser keeps nothing */ }
  return directory;
}

/** Asks how to sign in to the agent, and does it. Returns whether that has succeeded. */
async function signIn(reason) {
  const methods = list(client.agent.authMethods);
  const dialog = makeDialog(
    "The agent needs you to sign in",
    element("p", {}, plain(reason)),
    !methods.length && element("p", {}, "It offers no way to do so from here. Sign in with the agent's own command on its machine."),
    element(
      "div",
      { class: "ways" },
      methods.map(({ id, name, description }) => element("p", {}, element("button", { class: "primary", type: "button", onclick: () => dialog.close(`way ${id}`) }, plain(name ?? id)), " ", plain(description ?? ""))),
    ),
    element("div", { class: "actions" }, element("button", { type: "button", onclick: () => dialog.close("") }, "Cancel")),
  );
  const chosen = await showDialog(dialog);
  if (!chosen) return false;
  try {
    await client.request("authenticate", { methodId: chosen.slice(4) });
    return true;
  } catch (error) {
    note(error.message, true);
    return false;
  }
}

async function newSession() {
  showList(false);
  const cwd = await askForDirectory();
  if (!cwd) return;
  field("new").disabled = true;
  try {
    for (;;) {
      try {
        const result = await client.request("session/new", { cwd, mcpServers: [] });
        const made = addView(result.sessionId);
        made.directory = cwd;
        made.controlled(result);
        for (const { method, params } of early.splice(0)) if (params.sessionId === made.id) made.handle(method, params);
        show(made);
        break;
      } catch (error) {
        if (error.code !== AUTH_REQUIRED || !(await signIn(error.message))) throw error;
      }
    }
    refresh();
  } catch (error) {
    note(error.message, true);
  } finally {
    field("new").disabled = false;
  }
}
$("new").addEventListener("click", newSession);

/** Asks what a link shall permit, if there is a choice. Resolves with "watch", "answer" or nothing. */
async function askForLink() {
  if (client?.about?.approvals !== "any") return "watch";
  const choice = (value, name) => element("button", { class: "primary", type: "button", onclick: () => dialog.close(value) }, name);
  const dialog = makeDialog(
    "Share this session",
    element("p", {}, "What may someone with the link do for the next hour?"),
    element("div", { class: "ways" }, element("p", {}, choice("watch", "Only watch")), element("p", {}, choice("answer", "Watch, and answer permission requests"))),
    element("div", { class: "actions" }, element("button", { type: "button", onclick: () => dialog.close("") }, "Cancel")),
  );
  return showDialog(dialog);
}

/** Makes a link with which anyone can watch the session, and perhaps approve what the agent wants to do. */
$("share").addEventListener("click", async () => {
  try {
    const kind = await askForLink();
    if (!kind) return;
    const answers = kind === "answer";
    const link = await api("/.outrigger/links", { method: "POST", body: { path: pagePath, session: view.id, ttl_s: 3600, answers } });
    const url = serverUrl(`${pagePath}#session=${encodeURIComponent(view.id)}&token=${link.token}`).href;
    const copied = await navigator.clipboard?.writeText(url).then(() => true, () => false);
    const address = element("input", { class: "address", readonly: true, value: url, "aria-label": "Link" });
    const rights = answers ? "and answer its permission requests. They cannot write." : "They cannot write or approve.";
    const text = `Anyone with this link can watch this session for an hour${answers ? " " : ". "}${rights} ${copied ? "The link is in your clipboard." : "Copy it from this field."} The console lists links, and revokes them.`;
    const dialog = makeDialog(answers ? "Link to watch and approve" : "Watch-only link", element("p", {}, text), address, element("div", { class: "actions" }, element("button", { class: "primary", type: "button", onclick: () => dialog.close() }, "Done")));
    address.addEventListener("focus", () => address.select());
    await showDialog(dialog);
  } catch (error) {
    note(error.message, true);
  }
});

onNotificationTouched(openSession);
$("notify").addEventListener("click", async () => {
  const answer = await Notification.requestPermission();
  if (answer === "granted" && !(await notify("Notifications are on", "You are told when the agent asks something, or has finished."))) {
    note("This browser shows no notifications of pages. The title of the page begins with (!) when the agent waits for you.", true);
  }
  showState();
});

const composer = new Composer({
  view: () => view,
  capabilities: () => client?.agent?.agentCapabilities?.promptCapabilities ?? {},
  maxMessage: () => client?.about?.maxMessage,
  send(prompt) {
    follows = true;
    view.prompt(prompt);
    toEnd();
  },
  stop: () => view.stop(),
});

// --- The connection --------------------------------------------------------------------------------------------------

/** Notifications about sessions that this page does not know yet: the agent may send them before it answers `session/new`. */
const early = [];

/** Connects to the agent. Resolves with whether that has succeeded; `reason` says why not. */
async function connect() {
  const made = new AgentClient({
    ask(params, id, answer) {
      const view = views.get(params.sessionId);
      if (view) view.transcript.permission(params, id, answer);
      else answer();
    },
  });
  made.addEventListener("cut", ({ detail }) => showLost(detail.reason));
  for (const type of ["open", "resume"]) made.addEventListener(type, showFound);
  made.addEventListener("notification", ({ detail: { method, params } }) => {
    if (method === "$/cancel_request") {
      for (const one of views.values()) one.transcript.withdraw(params.requestId);
      return;
    }
    const known = views.get(params.sessionId);
    if (known) known.handle(method, params);
    else if (early.length < 100) early.push({ method, params });
  });
  await made.initialize();
  client = made;
  made.addEventListener("close", ({ detail }) => client === made && reconnect(detail));
}

/** The server does not have the conversation any more. The page begins a new one, in which it opens its session again. */
async function reconnect({ code, reason }) {
  const current = view?.id;
  client = undefined;
  for (const one of views.values()) {
    if (code === 1009) one.putBack();
    else one.keepDraft();
    one.close();
  }
  views.clear();
  if (code === 1009) note(`The server did not accept the prompt: ${plain(reason) || "it is too long"}.`, true);
  showLost("the conversation has to begin anew");
  await begin(current);
}

/** Connects, and opens a session. A client that may only watch gets no agent process of its own, and views the session instead. */
async function begin(id) {
  for (let wait = 500; ; wait = Math.min(10_000, wait * 2)) {
    // A connection that cannot be made says so itself.
    const late = setTimeout(() => {
      if (lostSince) return;
      showConnection("gone", "waiting for the agent");
      setText($("empty"), "The agent has not answered yet. If it is not an agent of the Agent Client Protocol, it never will.");
      setHidden($("empty"), false);
    }, PATIENCE);
    try {
      await connect();
      clearTimeout(late);
      break;
    } catch (error) {
      clearTimeout(late);
      if (id && error.code) {
        client = undefined;
        break;
      }
      if (error.code || error.status) {
        showConnection("gone", "not connected");
        setText($("empty"), error.message);
        setHidden($("empty"), false);
        return;
      }
      showLost(error.message);
      await delay(wait);
    }
  }
  lostSince = undefined;
  await refresh();
  if (id) await openSession(id);
  else {
    showState();
    if (matchMedia("(max-width: 48rem)").matches) showList(true);
  }
}

async function main() {
  for (;;) {
    try {
      identity = await session();
      break;
    } catch (error) {
      if (error.status === 401) await askForToken(token() ? "The server does not accept the token of this page." : undefined);
      else {
        showLost("the server does not answer");
        await delay(2000);
      }
    }
  }
  const id = fragment.get("session") || identity?.only?.session;
  if (identity?.only) {
    // A link permits to watch one session, and nothing else.
    document.body.classList.add("linked");
    lostSince = undefined;
    await openSession(id);
    return;
  }
  await begin(id);
  setInterval(() => { if (!document.hidden && !lostSince) refresh(); }, REFRESH);
}

// A reload opens the session again. While the agent works, the server keeps its messages and questions for this page; otherwise
// nothing needs this connection any more.
addEventListener("pagehide", () => {
  const all = [...views.values()];
  for (const one of all) {
    one.keepDraft();
    one.close();
  }
  if (!all.some(({ running, role }) => running && role === "controller")) client?.close();
});
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
main();
