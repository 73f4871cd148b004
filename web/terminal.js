// The terminal page: xterm.js on a connection to a terminal or process of the server.
//
// The page is at the URL of its WebSocket. Keys of the fragment: `token` (see common.js), `mode=viewer` to watch, `theme=NAME`, and
// `renderer=dom` or `renderer=webgl` to choose how xterm.js draws.

import { Terminal } from "./xterm.mjs";
import { FitAddon } from "./addon-fit.mjs";
import { SearchAddon } from "./addon-search.mjs";
import { SerializeAddon } from "./addon-serialize.mjs";
import { UnicodeGraphemesAddon } from "./addon-unicode-graphemes.mjs";
import { WebLinksAddon } from "./addon-web-links.mjs";
import { $, api, askForToken, element, field, formatBytes, formatDuration, fragment, pagePath, serverUrl, session, socketProtocols, storage } from "./common.js";
import { OutriggerAddon, isProcessPath } from "./outrigger_addon.js";
import { correctReverseVideo, moveFieldWithRows } from "./terminal_core.js";

const FONT_SIZE = "outrigger.terminal.fontSize";
const READER = "outrigger.terminal.screenReader";
const THEME = "outrigger.terminal.theme";
const FONT = "outrigger.terminal.font";
/** The longest text that a program can put into the clipboard. */
const LARGEST_COPY = 1024 * 1024;
/** The lines above the end that can be selected on a touch screen. */
const SELECTABLE = 2000;
const SMALLEST_FONT = 6;
const LARGEST_FONT = 40;
const SCROLLBACK = 10_000;
const LONGEST_SEQUENCE = 64 * 1024;
/** The page never shows a larger terminal, because its memory and time grow with the size, which others choose. */
const MOST_ROWS = 500;
const MOST_COLS = 1000;
const MOST_CELLS = 200_000;
const LARGEST_PASTE = 16 * 1024 * 1024;
const PALETTES = {
  dark: {
    background: "#14171b", foreground: "#dfe3e8", cursor: "#dfe3e8", cursorAccent: "#14171b", selectionBackground: "#34547d",
    black: "#22272e", red: "#f0716b", green: "#7bc67e", yellow: "#e0b252", blue: "#6fa8f5", magenta: "#cf8ee8", cyan: "#5cc4cf",
    white: "#c9d0d8", brightBlack: "#7d8793", brightRed: "#ff938c", brightGreen: "#98dd9a", brightYellow: "#f3cb74",
    brightBlue: "#93c1ff", brightMagenta: "#e2adf6", brightCyan: "#82dbe4", brightWhite: "#f4f6f8",
    scrollbarSliderBackground: "#ffffff22", scrollbarSliderHoverBackground: "#ffffff3a", scrollbarSliderActiveBackground: "#ffffff4d",
  },
  light: {
    background: "#ffffff", foreground: "#1f262d", cursor: "#1f262d", cursorAccent: "#ffffff", selectionBackground: "#b9d5f6",
    black: "#24292f", red: "#b42318", green: "#16703a", yellow: "#8a5a00", blue: "#0a5cad", magenta: "#8a3ab9", cyan: "#0b6f7d",
    white: "#d0d6dc", brightBlack: "#5d6873", brightRed: "#d1332b", brightGreen: "#1a8a44", brightYellow: "#a87300",
    brightBlue: "#2a78d0", brightMagenta: "#a355cf", brightCyan: "#158796", brightWhite: "#f6f8fa",
    scrollbarSliderBackground: "#0000001f", scrollbarSliderHoverBackground: "#00000033", scrollbarSliderActiveBackground: "#00000047",
  },
  contrast: {
    background: "#000000", foreground: "#ffffff", cursor: "#ffff00", cursorAccent: "#000000", selectionBackground: "#005fd7",
    black: "#000000", red: "#ff6b6b", green: "#5fff87", yellow: "#ffff5f", blue: "#87afff", magenta: "#ff87ff", cyan: "#5fffff",
    white: "#ffffff", brightBlack: "#bcbcbc", brightRed: "#ff8787", brightGreen: "#87ffaf", brightYellow: "#ffff87",
    brightBlue: "#afd7ff", brightMagenta: "#ffafff", brightCyan: "#87ffff", brightWhite: "#ffffff",
    scrollbarSliderBackground: "#ffffff66", scrollbarSliderHoverBackground: "#ffffff88", scrollbarSliderActiveBackground: "#ffffffaa",
  },
};
const MATCHES = {
  dark: { matchBackground: "#5a4a1e", activeMatchBackground: "#a07414", matchOverviewRuler: "#a07414", activeMatchColorOverviewRuler: "#e3b04b" },
  light: { matchBackground: "#ffe9a8", activeMatchBackground: "#ffc64d", matchOverviewRuler: "#e0a100", activeMatchColorOverviewRuler: "#865200" },
};

const frame = $("frame");
const name = location.pathname.match(/\/by-name\/([^/]+)(\/attach)?$/)?.[1];
const isProcess = isProcessPath(location.pathname);
const place = name ?? (isProcess ? `Process ${location.pathname.split("/").at(-2).slice(0, 8)}` : "Terminal");
const stored = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
const store = (key, value) => { try { localStorage.setItem(key, value); } catch { /* the browser blocks it */ } };

// The terminal.

const dark = matchMedia("(prefers-color-scheme: dark)");
const THEMES = { system: "As the system", dark: "Dark", light: "Light", contrast: "High contrast" };
/** The name of a palette. The address decides, then what was chosen in the dialog, then the system. */
function themeName() {
  const chosen = [fragment.get("theme"), stored(THEME)].find((name) => Object.hasOwn(THEMES, name ?? "")) ?? "system";
  return chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
}
const palette = () => PALETTES[themeName()];
const isDark = () => themeName() !== "light";
const DEFAULT_FONT = getComputedStyle(document.documentElement).getPropertyValue("--mono");
/** The fonts to use: the chosen one, if the browser has it, and those of the page. */
function fontFamily() {
  const chosen = (stored(FONT) ?? "").replace(/["\\;{}<>]/g, "").trim().slice(0, 100);
  return chosen ? `"${chosen}", ${DEFAULT_FONT}` : DEFAULT_FONT;
}
let fontSize = Math.min(LARGEST_FONT, Math.max(SMALLEST_FONT, Number(stored(FONT_SIZE)) || defaultFontSize()));

function defaultFontSize() {
  return innerWidth < 500 ? 12 : 14;
}

const terminal = new Terminal({
  allowProposedApi: true, // for the search's and Unicode's addons
  cursorBlink: true,
  fontFamily: fontFamily(),
  fontSize,
  lineHeight: 1.1, // with less, the DOM renderer cuts underscores off
  logLevel: "error",
  macOptionClickForcesSelection: true,
  minimumContrastRatio: 4.5,
  rescaleOverlappingGlyphs: true,
  screenReaderMode: stored(READER) === "true",
  scrollback: SCROLLBACK,
  theme: palette(),
  linkHandler: {
    activate: (_event, target) => openLink(target),
    hover: (_event, target) => showLink(target),
    leave: () => showLink(""),
  },
});
// Lets a program or a test look at the screen.
window.outriggerTerminal = terminal;
/** What xterm.js does not offer to pages. */
const core = /** @type {any} */ (terminal)._core;

const fit = new FitAddon();
const serialize = new SerializeAddon();
const search = new SearchAddon({ highlightLimit: 1000 });
terminal.loadAddon(fit);
terminal.loadAddon(serialize);
terminal.loadAddon(search);
// The server counts columns in the same way.
terminal.loadAddon(new UnicodeGraphemesAddon());
/** An address, which may contain parentheses in pairs, such as `https://en.wikipedia.org/wiki/Outrigger_(nautical)`. */
const ADDRESS = /https?:\/\/(?:\([^\s"'<>`{}|\\^()]*\)|[^\s"'<>`{}|\\^()])*(?:\([^\s"'<>`{}|\\^()]*\)|[^\s"'<>`{}|\\^()[\]:,.!?;~*])/i;
terminal.loadAddon(new WebLinksAddon((_event, target) => openLink(target), {
  urlRegex: ADDRESS,
  hover: (_event, target) => showLink(target),
  leave: () => showLink(""),
}));

/**
 * Shows output at once. `write` would queue it without a limit, because a page cannot make its WebSocket wait. A page that is
 * busy does: then the browser stops reading, and at last the program waits. Everything that was received is on the screen.
 */
function show(data) {
  writing = true;
  try { core.writeSync(data); } finally { writing = false; }
  recent.push(data);
  recentBytes += data.length;
  while (recentBytes - recent[0].length >= LONGEST_SEQUENCE) recentBytes -= recent.shift().length;
}
/** The end of the output, because a message may end within an escape sequence. */
const recent = [];
let recentBytes = 0;
/** Whether output is being written. What the terminal sends meanwhile are its answers to questions in that output. */
let writing = false;

function openLink(target) {
  if (/^https?:/i.test(target)) open(target, "_blank", "noopener,noreferrer");
}

function showLink(target) {
  $("link").textContent = target;
}

/** WebGL is faster than the DOM if a GPU draws it. Only then, its code is loaded. */
async function chooseRenderer() {
  const chosen = fragment.get("renderer");
  if (chosen === "dom") return;
  const context = document.createElement("canvas").getContext("webgl2");
  if (!context) return;
  const gpu = context.getExtension("WEBGL_debug_renderer_info");
  const name = gpu ? String(context.getParameter(gpu.UNMASKED_RENDERER_WEBGL)) : "";
  context.getExtension("WEBGL_lose_context")?.loseContext();
  if (chosen !== "webgl" && /swiftshader|llvmpipe|softpipe|software|basic render/i.test(name)) return;
  try {
    const { WebglAddon } = await import("./addon-webgl.mjs");
    const webgl = new WebglAddon();
    webgl.onContextLoss(() => webgl.dispose());
    terminal.loadAddon(webgl);
  } catch { /* the DOM renderer stays */ }
}

function showTheme() {
  document.documentElement.dataset.theme = themeName();
  terminal.options.theme = palette();
  terminal.options.minimumContrastRatio = themeName() === "contrast" ? 7 : 4.5;
  terminal.options.fontFamily = fontFamily();
}
dark.addEventListener("change", showTheme);

// The size. A writer's terminal fills the window. A viewer's has the writer's size, in letters that fit.

let remoteSize;

/** The size of the terminal that the page shows instead of one of this size. */
function bounded({ rows, cols }) {
  const width = Math.min(cols, MOST_COLS);
  return { cols: width, rows: Math.min(rows, MOST_ROWS, Math.floor(MOST_CELLS / width)) };
}

function resize(size) {
  const { rows, cols } = bounded(size);
  terminal.resize(cols, rows);
}

function layout() {
  const viewport = window.visualViewport;
  if (viewport && viewport.scale === 1) {
    document.documentElement.style.setProperty("--height", `${viewport.height}px`);
    document.documentElement.style.setProperty("--top", `${viewport.offsetTop}px`);
  }
  const viewer = connection.viewer && remoteSize !== undefined;
  frame.classList.toggle("viewer", viewer);
  if (viewer) {
    resize(remoteSize);
    scale();
  } else {
    if (terminal.options.fontSize !== fontSize) terminal.options.fontSize = fontSize;
    const proposed = fit.proposeDimensions();
    if (proposed && proposed.rows > 0 && proposed.cols > 1) resize(proposed);
  }
  $("size").textContent = `${terminal.cols}×${terminal.rows}`;
}

/** @returns {HTMLElement} the element with the rows */
const screenElement = () => terminal.element.querySelector(".xterm-screen");

/** Chooses the largest letters with which the whole screen fits. */
function scale() {
  const screen = screenElement();
  const style = getComputedStyle(frame);
  const width = frame.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const height = frame.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
  const fits = () => screen.offsetWidth <= width && screen.offsetHeight <= height;
  // The first guess is close, because the size of the screen is nearly proportional to that of the letters.
  let size = terminal.options.fontSize * Math.min(width / screen.offsetWidth, height / screen.offsetHeight);
  size = Math.floor(Math.min(LARGEST_FONT, Math.max(2, size)) * 2) / 2 + 1;
  do { terminal.options.fontSize = size; size -= 0.5; } while (!fits() && size >= 2);
}

let framed = false;
function relayout() {
  if (framed) return;
  framed = true;
  requestAnimationFrame(() => { framed = false; layout(); });
}

function setFontSize(size) {
  fontSize = Math.min(LARGEST_FONT, Math.max(SMALLEST_FONT, size));
  store(FONT_SIZE, fontSize);
  relayout();
}

// What the status bar says.

let about; // what the server says about the token
let role; // "writer" or "viewer", from the server
let clients; // who else is there
let exit; // how the program has ended
let failure = ""; // what the server says is wrong
let displaced = ""; // why this page watches although it wanted to write
const mayWrite = () => !about?.scope || about.scope === "all" || about.scope === "use";

const plural = (count, one, many) => `${count} ${count === 1 ? one : many}`;
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Whether so many connections were cut early that it is worth a word. */
const cutOften = (state) => state.cuts >= 2;

function company() {
  const parts = [];
  if (connection.viewer) {
    parts.push("Watching");
    if (clients) {
      const { writer } = clients;
      const anonymous = writer === "default" || writer === "nobody" || writer === about?.principal;
      parts.push(writer ? (anonymous ? "another window writes" : `${writer} writes`) : "nobody writes");
      if (clients.viewers > 1) parts.push(`${clients.viewers} watch`);
    }
    if (displaced) parts.unshift(displaced);
    if (remoteSize && (remoteSize.rows > terminal.rows || remoteSize.cols > terminal.cols)) {
      parts.push(`the terminal is larger than what is shown: ${remoteSize.cols}×${remoteSize.rows}`);
    }
  } else {
    parts.push("Connected");
    if (role === "viewer") parts.push("watch only");
    if (clients?.viewers) parts.push(`${plural(clients.viewers, "viewer", "viewers")}`);
  }
  if (cutOften(connection.state)) parts.push("the connection was cut again and again");
  return parts.join(" · ");
}

/** The server's messages begin with a small letter. */
const sentence = (text) => text && text[0].toUpperCase() + text.slice(1);

function closeTab() {
  window.close();
  setTimeout(() => note("The browser does not let the page close this tab"), 300);
}

const ending = () => exit.signal ? `Killed by ${exit.signal}` : `Exited with code ${exit.exitCode}`;

function describe(state) {
  const again = { text: isProcess ? "Connect again" : "Start a new terminal", act: () => renew() };
  const close = { text: "Close", act: closeTab };
  const takeOver = { text: "Take over", act: () => renew({ viewer: false, takeover: true }) };
  // A browser lets a page close only a tab that a page has opened.
  const closable = window.opener || history.length === 1 ? [close] : [];
  switch (state.name) {
    case "connecting": return { kind: "wait", text: "Connecting" };
    case "open": {
      const offer = connection.viewer && isProcess && mayWrite();
      const nobody = clients && !clients.writer;
      return { kind: "open", text: company(), actions: offer ? [nobody ? { ...takeOver, text: "Write" } : takeOver] : [] };
    }
    case "lost": {
      const why = state.message ? `${sentence(state.message)}. ` : cutOften(state) ? "The connection is cut again and again. " : "";
      const text = `${why}No connection since ${clock(state.since)}`;
      return { kind: "lost", text, ticks: true, actions: [{ text: "Try now", act: () => connection.retry() }] };
    }
    case "taken": return { kind: "ended", text: "This terminal continues in another window", actions: [again, ...closable] };
    case "refused": return { kind: "failed", text: "Another client writes", actions: [takeOver] };
    case "gone":
      if (exit) return { kind: "ended", text: ending(), actions: isProcess ? closable : [again, ...closable] };
      if (isProcess) return { kind: "failed", text: "The process does not exist any more", actions: closable };
      return { kind: "failed", text: "The terminal is gone: the server has ended it", actions: [again, ...closable] };
    default:
      if (exit) return { kind: "ended", text: ending(), actions: isProcess ? closable : [again, ...closable] };
      return { kind: "failed", text: sentence(failure || state.message) || `The server has closed the connection (${state.code})`, actions: [again, ...closable] };
  }
}

let ticking;
let settle;
let actionsKey = "";

function update() {
  clearTimeout(settle);
  const { state } = connection;
  // A short cut is not worth a word.
  const young = state.name === "lost" && !cutOften(state) && Date.now() - state.since < 400;
  if (young && $("bar").dataset.state === "open") {
    settle = setTimeout(update, 400);
    return;
  }
  const { kind, text, ticks, actions = [] } = describe(state);
  $("bar").dataset.state = kind;
  if ($("state").textContent !== text) $("state").textContent = text;
  const key = JSON.stringify([state.name, actions]);
  if (key !== actionsKey) {
    actionsKey = key;
    const focused = $("actions").contains(document.activeElement);
    const buttons = actions.map(({ text, act }) => element("button", { type: "button", onclick: () => { terminal.focus(); act(); } }, text));
    $("actions").replaceChildren(...buttons);
    if (focused) (buttons[0] ?? terminal).focus();
  }
  clearInterval(ticking);
  const tick = () => {
    const now = Date.now();
    const since = formatDuration((now - state.since) / 1000);
    const next = state.next > now + 500 ? `, next attempt in ${formatDuration((state.next - now) / 1000 + 0.5)}` : "";
    $("ticker").textContent = ticks ? `(${since}${next})` : "";
  };
  tick();
  if (ticks) ticking = setInterval(tick, 1000);
}

let noteTimer;
/** Says something for a few seconds. `action` is a button beside it: `{text, act}`. */
function note(text, action) {
  const button = action && element("button", { type: "button", onclick: () => { note(""); terminal.focus(); action.act(); } }, action.text);
  $("note").replaceChildren(text, ...(button ? [" ", button] : []));
  clearTimeout(noteTimer);
  if (text) noteTimer = setTimeout(() => note(""), action ? 30_000 : 8000);
}

let title = "";
let marked = false;
function showTitle() {
  document.title = (marked ? "● " : "") + (title || `${place} – ${location.host}`);
}

function ring() {
  frame.classList.add("bell");
  setTimeout(() => frame.classList.remove("bell"), 150);
  if (document.hidden) { marked = true; showTitle(); }
}

// The connection.

const connection = new OutriggerAddon(serverUrl(pagePath + location.search), {
  protocols: socketProtocols,
  viewer: fragment.get("mode") === "viewer" || new URLSearchParams(location.search).get("mode") === "viewer",
  input: false,
  write(data) {
    show(data);
    replay?.heard();
  },
  size(size) {
    remoteSize = size;
    layout();
  },
  async unauthorized() {
    await askForToken("This terminal requires a token, and the one that this page has is missing or wrong.");
    await learn();
  },
});
let restored = false;

connection.addEventListener("event", ({ detail: event }) => {
  if (event.type === "role") role = event.role;
  else if (event.type === "size") remoteSize = { rows: event.rows, cols: event.cols };
  else if (event.type === "clients") clients = event;
  else if (event.type === "exit") exit = event;
  else if (event.type === "error") failure = String(event.message);
  // A screen repeats no question of a program, and what follows it is new.
  else if (event.type === "screen") replay?.finish();
  else if (event.type === "gap") note(`${formatBytes(event.to - event.from)} of earlier output are no longer kept`);
  update();
});

connection.addEventListener("state", ({ detail: state }) => {
  if (isProcess && !connection.viewer && (state.name === "refused" || state.name === "taken")) {
    displaced = state.name === "taken" ? "Taken over by another client" : "";
    return restartAs({ viewer: true });
  }
  // After a reload, a terminal that is gone needs no farewell.
  if (state.name === "gone" && restored && !isProcess) return renew();
  if (state.name === "open") restored = false;
  if (state.name === "open" && state.behind && !connection.viewer) {
    replay?.finish();
    replay = new Replay();
  }
  terminal.options.cursorBlink = state.name === "open" && !connection.viewer;
  terminal.options.disableStdin = connection.viewer || !connection.live;
  showKeys();
  update();
});

function restartAs(options) {
  role = clients = exit = undefined;
  failure = "";
  if (!options.viewer) remoteSize = undefined;
  connection.restart(options);
  layout();
}

/** Shows the keys of the fragment in the address. */
function showFragment() {
  const rest = [...fragment].map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  history.replaceState(history.state, "", serverUrl(pagePath + location.search + (rest && `#${rest}`)));
}

/** Begins anew: a terminal with a clear screen, a process where its output was received last. */
function renew(options = {}) {
  restored = false;
  displaced = "";
  if (!isProcess) {
    terminal.reset();
    recent.length = recentBytes = 0;
    title = "";
    showTitle();
  }
  if (options.viewer === false && fragment.get("mode") === "viewer") {
    fragment.delete("mode");
    showFragment();
  }
  restartAs(options);
  terminal.focus();
}

// Input. Ctrl and Alt of the key row apply to the next key.

const sticky = { ctrl: false, alt: false };
const encoder = new TextEncoder();

function send(bytes) {
  if (!connection.send(bytes)) note("Input is not accepted: the program does not read what was sent before");
}

function withModifiers(text) {
  if (!sticky.ctrl && !sticky.alt) return text;
  let modified = text;
  if ([...text].length === 1) {
    if (sticky.ctrl && /^[@-_a-z ?]$/i.test(text)) modified = text === "?" ? "\x7f" : String.fromCharCode(text.toUpperCase().charCodeAt(0) & 31);
    if (sticky.alt) modified = `\x1b${modified}`;
  } else {
    const key = /^\x1b[[O](?:(\d)~|([A-DHF]))$/.exec(text);
    const modifiers = 1 + (sticky.alt ? 2 : 0) + (sticky.ctrl ? 4 : 0);
    if (key) modified = key[1] ? `\x1b[${key[1]};${modifiers}~` : `\x1b[1;${modifiers}${key[2]}`;
  }
  if (modified !== text) release();
  return modified;
}

/** Older output has been shown once no message has come for this long. */
const QUIET = 200;
const LONGEST_REPLAY = 10_000;

/**
 * Output from before the connection may have questions of programs to the terminal, such as for its colors. They were answered
 * then, or nobody waits any more, and whatever runs now would read an answer as input. So the terminal answers nothing until
 * that output has been shown.
 */
class Replay {
  #timer; #heard; #end = Date.now() + LONGEST_REPLAY; #isTyping = false;

  constructor() { this.heard(); }
  heard() {
    // What the program echoes is no older output.
    if (this.#isTyping) return;
    this.#heard = Date.now();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.finish(), Math.max(0, Math.min(QUIET, this.#end - this.#heard)));
  }
  /** The user types: what follows is new, unless older output is still coming. Then it is new soon. */
  typed() {
    this.#isTyping = true;
    if (Date.now() - this.#heard > QUIET / 4) this.finish();
  }
  finish() {
    clearTimeout(this.#timer);
    if (replay === this) replay = undefined;
  }
}
let replay;

terminal.onData((text) => {
  if (replay) {
    // A report of the focus is for a program that may have ended.
    if (writing || /^\x1b\[[IO]$/.test(text)) return;
    replay.typed();
  }
  send(encoder.encode(withModifiers(text)));
});
terminal.onBinary((text) => send(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
terminal.onBell(ring);
terminal.onTitleChange((text) => { title = text.slice(0, 200); showTitle(); });
terminal.onResize(({ rows, cols }) => {
  $("size").textContent = `${cols}×${rows}`;
});

/** Copies the selection. */
async function copy() {
  const text = terminal.getSelection();
  if (text) await copyText(text);
}

/** Copies a text after a click or a key. Without a secure context, a browser has no clipboard for pages. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    terminal.focus();
  }
}

/**
 * A program may write to the clipboard (OSC 52), for example vim in a session over ssh. The page says so, because what is pasted next
 * may be a command. It never tells a program what is in the clipboard. Output from before the connection has been handled before.
 */
terminal.parser.registerOscHandler(52, (data) => {
  const [, encoded] = /^[a-z0-7]*;([A-Za-z0-9+/=]*)$/.exec(data) ?? [];
  if (!encoded || replay || connection.viewer || encoded.length > LARGEST_COPY) return true;
  let text;
  try { text = new TextDecoder().decode(decode(encoded)); } catch { return true; }
  const count = plural([...text].length, "character", "characters");
  const copied = () => note(`The program has put ${count} into the clipboard`);
  // A browser may ask for a click first.
  const wants = () => note(`The program wants to put ${count} into the clipboard.`, { text: "Copy", act: () => copyText(text).then(copied) });
  if (!navigator.clipboard) wants(); else navigator.clipboard.writeText(text).then(copied, wants);
  return true;
});

let reloading = 0;
terminal.attachCustomKeyEventHandler((event) => {
  if (event.type !== "keydown") return true;
  const plain = !event.ctrlKey && !event.altKey && !event.metaKey && !event.shiftKey;
  // Full-screen programs get these keys. At a prompt they are the browser's: reload and full screen.
  if (plain && (event.key === "F5" || event.key === "F11") && terminal.buffer.active.type === "normal") {
    if (event.key === "F5") reloading = Date.now();
    return false;
  }
  if (event.ctrlKey && event.shiftKey && !event.altKey && !event.metaKey) {
    if (event.code === "KeyC") {
      event.preventDefault();
      copy();
      return false;
    }
    if (event.code === "KeyV") return false; // the browser pastes
  }
  return true;
});

/** The page's own keys. */
function shortcut(event) {
  if (!event.ctrlKey || event.altKey || event.metaKey) return undefined;
  if (event.shiftKey && event.code === "KeyF") return openSearch;
  if (event.shiftKey && event.code === "KeyE") return () => $("find-open").focus();
  if (event.key === "+" || event.key === "=" || event.code === "NumpadAdd") return () => setFontSize(fontSize + 1);
  if (event.key === "-" || event.code === "NumpadSubtract") return () => setFontSize(fontSize - 1);
  if (!event.shiftKey && (event.key === "0" || event.code === "Numpad0")) return () => setFontSize(defaultFontSize());
  return undefined;
}

addEventListener("keydown", (event) => {
  const act = shortcut(event);
  const again = event.key === "Enter" && !event.repeat && event.target === terminal.textarea && !connection.live;
  if (!act && !again) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (act) act(); else $("actions").querySelector("button")?.click();
}, true);

// A paste cannot end its own brackets, and a huge one does not fill the memory.
$("terminal").addEventListener("paste", (event) => {
  event.preventDefault();
  event.stopPropagation();
  paste(event.clipboardData?.getData("text/plain") ?? "");
}, true);

function paste(text) {
  if (!text || connection.viewer) return;
  if (text.length > LARGEST_PASTE) return note(`The text is too long to paste: ${formatBytes(text.length)}`);
  terminal.paste(terminal.modes.bracketedPasteMode ? text.replaceAll("\x1b", "") : text);
}

/**
 * Shows a dialog, which is gone once it is closed. The last button is a submit button, with `act`.
 * @param {string} title
 * @param {any} content
 * @param {{close?: string, submit?: string, act?: () => unknown}} [options]
 */
function showDialog(title, content, { close = "Close", submit, act } = {}) {
  const cancel = element("button", { type: submit ? "button" : "submit" }, close);
  const form = element("form", {}, element("h1", { id: "dialog-title" }, title), content,
    element("div", { class: "actions" }, cancel, submit && element("button", { class: "primary" }, submit)));
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form);
  cancel.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", (event) => { event.preventDefault(); dialog.close(); act?.(); });
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    // A key may have moved the focus since the browser gave it back.
    if ([before, document.body].includes(document.activeElement)) terminal.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Pastes what is in the clipboard. If the browser does not tell, it can be pasted into a field first. */
async function pasteFromClipboard() {
  try {
    paste(await navigator.clipboard.readText());
  } catch {
    const field = element("textarea", { id: "paste-text", rows: "4", autocapitalize: "off", autocomplete: "off", spellcheck: false });
    const label = element("label", { for: "paste-text" }, "Text");
    showDialog("Paste", [label, field], { close: "Cancel", submit: "Paste", act: () => paste(field.value) });
    field.focus();
  }
}

/** Shows the text of the terminal in a way that a finger can select. */
function openSelection() {
  const buffer = terminal.buffer.active;
  const end = buffer.baseY + terminal.rows;
  const lines = [];
  for (let at = Math.max(0, end - SELECTABLE); at < end; at++) {
    const line = buffer.getLine(at);
    const text = line?.translateToString(true) ?? "";
    if (line?.isWrapped && lines.length) lines[lines.length - 1] += text; else lines.push(text);
  }
  const text = lines.join("\n").trimEnd();
  const area = element("pre", { id: "selectable", tabindex: "0", role: "region", "aria-label": "Text of the terminal" }, text);
  const dialog = showDialog("Select text", area, { submit: "Copy all", act: () => copyText(text).then(() => note("Copied")) });
  dialog.classList.add("wide");
  area.scrollTop = area.scrollHeight;
}

/** Theme, font and size, which the browser keeps. */
function openSettings() {
  const theme = element("select", { id: "setting-theme" },
    Object.entries(THEMES).map(([name, text]) => element("option", { value: name, selected: (fragment.get("theme") ?? stored(THEME) ?? "system") === name }, text)));
  const font = element("input", { id: "setting-font", type: "text", value: stored(FONT) ?? "", placeholder: "Monospace of the system", autocomplete: "off", spellcheck: false });
  const size = element("input", { id: "setting-size", type: "number", min: SMALLEST_FONT, max: LARGEST_FONT, value: fontSize });
  const row = (text, field) => [element("label", { for: field.id }, text), field];
  theme.addEventListener("change", () => {
    if (fragment.delete("theme")) showFragment();
    store(THEME, theme.value);
    showTheme();
  });
  font.addEventListener("change", () => { store(FONT, font.value); showTheme(); relayout(); });
  size.addEventListener("change", () => { if (size.checkValidity() && size.value) setFontSize(size.valueAsNumber); });
  const fields = element("div", { class: "fields" }, row("Theme", theme), row("Font", font), row("Size", size));
  showDialog("Settings", fields);
}
$("settings").addEventListener("click", openSettings);

// Sharing.

const EXPIRIES = [[600, "10 minutes"], [3600, "1 hour"], [86_400, "1 day"]];

/** Only the terminal of a process can be watched, and only a token of the highest scope makes links. */
function showShare() {
  $("share").hidden = !(isProcess && about?.auth && about.scope === "all");
}

/** Makes a link with which anyone can watch the process, and copies it. */
function openShare() {
  const expiry = element("select", { id: "share-expiry" }, EXPIRIES.map(([seconds, text]) => element("option", { value: seconds, selected: seconds === 3600 }, text)));
  const fields = element("div", { class: "fields" }, element("label", { for: "share-expiry" }, "Expires in"), expiry);
  const make = async () => {
    try {
      const { token } = await api("/.outrigger/links", { method: "POST", body: { path: pagePath, ttl_s: Number(expiry.value) } });
      const address = serverUrl(`${pagePath}#mode=viewer&token=${token}`).href;
      await copyText(address);
      const field = element("input", { class: "address", readonly: true, value: address, "aria-label": "Link" });
      showDialog("Link to watch", [element("p", {}, "The link is in your clipboard. The console lists links, and revokes them."), field]);
      field.select();
    } catch (error) {
      note(sentence(error.message));
    }
  };
  const text = "Whoever has the link can watch this terminal, and do nothing else.";
  showDialog("Share", [element("p", {}, text), fields], { close: "Cancel", submit: "Copy link", act: make });
}
$("share").addEventListener("click", openShare);

// The search bar.

const options = () => ({
  caseSensitive: $("find-case").ariaPressed === "true",
  regex: $("find-regex").ariaPressed === "true",
  decorations: isDark() ? MATCHES.dark : MATCHES.light,
});

/** Finds the next match. Terminals grow downwards, so a search begins at the end and goes up. */
function seek(forward) {
  const text = field("find-text").value;
  if (!text) { search.clearDecorations(); $("find-count").textContent = ""; $("find").classList.remove("none"); return; }
  try {
    if (forward) search.findNext(text, options()); else search.findPrevious(text, options());
  } catch { $("find-count").textContent = "invalid"; }
}

function openSearch() {
  $("find").hidden = false;
  const selected = terminal.getSelection();
  if (selected && !selected.includes("\n")) field("find-text").value = selected;
  $("find-text").focus();
  field("find-text").select();
  seek(false);
}

function closeSearch() {
  $("find").hidden = true;
  search.clearDecorations();
  terminal.focus();
}

search.onDidChangeResults(({ resultIndex, resultCount }) => {
  $("find").classList.toggle("none", resultCount === 0);
  $("find-count").textContent = resultCount === 0 ? "none" : resultIndex < 0 ? `${resultCount}+` : `${resultIndex + 1} of ${resultCount}`;
});
$("find").addEventListener("submit", (event) => { event.preventDefault(); seek(false); });
$("find").addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeSearch();
  if (event.key === "Enter" && event.shiftKey && event.target === $("find-text")) { event.preventDefault(); seek(true); }
});
$("find-text").addEventListener("input", () => seek(false));
$("find-next").addEventListener("click", () => seek(true));
$("find-close").addEventListener("click", closeSearch);
$("find-open").addEventListener("click", openSearch);
for (const id of ["find-case", "find-regex"]) {
  $(id).addEventListener("click", () => { $(id).ariaPressed = String($(id).ariaPressed !== "true"); seek(false); });
}

// Screen readers.

function showReader() {
  $("reader").ariaPressed = String(terminal.options.screenReaderMode);
}
$("reader").addEventListener("click", () => {
  terminal.options.screenReaderMode = !terminal.options.screenReaderMode;
  store(READER, terminal.options.screenReaderMode);
  showReader();
  terminal.focus();
});

// The row of keys for touch screens.

const arrow = (letter) => () => terminal.input(`\x1b${terminal.modes.applicationCursorKeysMode ? "O" : "["}${letter}`);
/** The second row, which "More" shows. */
const MORE_KEYS = [
  ["Home", "Home", arrow("H")],
  ["End", "End", arrow("F")],
  ["PgUp", "PgUp, page up", () => terminal.input("\x1b[5~")],
  ["PgDn", "PgDn, page down", () => terminal.input("\x1b[6~")],
  ["Paste", "Paste", pasteFromClipboard, true],
  ["Select", "Select text", openSelection, true],
  ["A−", "A−, smaller letters", () => setFontSize(fontSize - 1)],
  ["A+", "A+, larger letters", () => setFontSize(fontSize + 1)],
];
const KEYS = [
  ["Esc", "Esc", () => terminal.input("\x1b")],
  ["Tab", "Tab", () => terminal.input("\t")],
  ["Ctrl", "Ctrl, for the next key", "ctrl"],
  ["Alt", "Alt, for the next key", "alt"],
  ["←", "Left", arrow("D")],
  ["↓", "Down", arrow("B")],
  ["↑", "Up", arrow("A")],
  ["→", "Right", arrow("C")],
];
const modifierKeys = {};
const touchScreen = matchMedia("(pointer: coarse)");

function showKeys() {
  $("keys").hidden = !touchScreen.matches || connection.viewer;
}

function release() {
  for (const name of ["ctrl", "alt"]) {
    sticky[name] = false;
    if (modifierKeys[name]) modifierKeys[name].ariaPressed = "false";
  }
}

const more = element("button", { type: "button", "aria-label": "More keys", "aria-expanded": "false", "aria-controls": "more-keys", tabindex: "-1" }, "⋯");
more.addEventListener("mousedown", (event) => event.preventDefault());
more.addEventListener("click", () => {
  $("more-keys").hidden = !$("more-keys").hidden;
  more.ariaExpanded = String(!$("more-keys").hidden);
  relayout();
});

/** Makes the button of a key. `once`: it does not repeat while it is held. */
function makeKey([text, name, act, once]) {
  const button = element("button", { type: "button", "aria-label": name, tabindex: "-1", "aria-pressed": typeof act === "string" && "false" }, text);
  // The focus stays in the terminal, so that the on-screen keyboard stays too.
  button.addEventListener("mousedown", (event) => event.preventDefault());
  if (typeof act === "string") {
    modifierKeys[act] = button;
    button.addEventListener("click", () => { sticky[act] = !sticky[act]; button.ariaPressed = String(sticky[act]); });
  } else {
    button.addEventListener("click", act);
    if (once) return button;
    let repeat;
    const stop = () => { clearTimeout(repeat); clearInterval(repeat); };
    button.addEventListener("pointerdown", () => {
      stop();
      repeat = setTimeout(() => { repeat = setInterval(act, 70); }, 450);
    });
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) button.addEventListener(end, stop);
    button.addEventListener("contextmenu", (event) => event.preventDefault());
  }
  return button;
}
$("main-keys").append(...KEYS.map(makeKey), more);
$("more-keys").append(...MORE_KEYS.map(makeKey));

// A finger scrolls. In a full-screen program it turns the mouse's wheel.
let finger;
const touched = (event) => event.touches.length === 1 ? { x: event.touches[0].clientX, y: event.touches[0].clientY } : undefined;
$("terminal").addEventListener("touchstart", (event) => { finger = touched(event); }, { passive: true });
$("terminal").addEventListener("touchmove", (event) => {
  const at = touched(event);
  if (!at || !finger) { finger = undefined; return; }
  event.preventDefault();
  const screen = screenElement();
  const lines = Math.trunc((finger.y - at.y) * terminal.rows / screen.offsetHeight);
  if (!lines) return;
  finger = at;
  if (terminal.buffer.active.type === "normal") return terminal.scrollLines(lines);
  const wheel = { deltaY: Math.sign(lines), deltaMode: WheelEvent.DOM_DELTA_LINE, clientX: at.x, clientY: at.y, bubbles: true, cancelable: true };
  for (let count = Math.abs(lines); count; count--) screen.dispatchEvent(new WheelEvent("wheel", wheel));
}, { passive: false });

// Leaving and coming back.

const KEY = `outrigger.terminal ${location.pathname}`;

/** The bytes at the end of the output that are the beginning of an escape sequence or of a letter. */
function unfinished(bytes) {
  let start = -1;
  let inside = "";
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at];
    if (byte === 0x18 || byte === 0x1a) inside = "";
    else if (byte === 0x1b && inside !== "string") { start = at; inside = "escape"; }
    else if (inside === "escape") {
      if (byte === 0x5b) inside = "csi";
      else if ([0x50, 0x58, 0x5d, 0x5e, 0x5f].includes(byte)) inside = "string";
      else if (byte >= 0x30) inside = "";
    } else if (inside === "csi") { if (byte >= 0x40) inside = ""; }
    else if (inside === "string") {
      if (byte === 0x07) inside = "";
      else if (byte === 0x1b) inside = bytes[at + 1] === undefined ? "string" : bytes[at + 1] === 0x5c ? "" : inside;
    }
  }
  if (inside) return bytes.subarray(start);
  let lead = bytes.length - 1;
  while (lead >= 0 && bytes.length - lead < 4 && (bytes[lead] & 0xc0) === 0x80) lead--;
  const needed = lead < 0 ? 0 : bytes[lead] >= 0xf0 ? 4 : bytes[lead] >= 0xe0 ? 3 : bytes[lead] >= 0xc0 ? 2 : 1;
  return bytes.length - lead < needed ? bytes.subarray(lead) : new Uint8Array();
}

const encode = (bytes) => btoa(String.fromCharCode(...bytes));
const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function save() {
  const state = connection.suspend();
  if (!state) return;
  const last = new Uint8Array(recentBytes);
  recent.reduce((at, bytes) => { last.set(bytes, at); return at + bytes.length; }, 0);
  const rest = unfinished(last);
  // The browser limits what a page can keep, so the scrollback may have to be shorter.
  for (const scrollback of [SCROLLBACK, 1000, 100, 0]) {
    const screen = serialize.serialize({ scrollback });
    const saved = { ...state, viewer: connection.viewer, rows: terminal.rows, cols: terminal.cols, screen,
      rest: rest.length < 8192 ? encode(rest) : "", title, role, clients, remoteSize, displaced };
    try { return storage.setItem(KEY, JSON.stringify(saved)); } catch { /* too long */ }
  }
}

/** Shows what `save` has kept, and continues there. */
function restore() {
  const text = storage.getItem(KEY);
  storage.removeItem(KEY);
  if (!text) return;
  const saved = JSON.parse(text);
  if (connection.viewer && !saved.viewer) return;
  ({ title, role, clients, remoteSize, displaced } = saved);
  terminal.resize(saved.cols, saved.rows);
  show(encoder.encode(saved.screen));
  show(decode(saved.rest));
  connection.restore(saved);
  restored = true;
  showTitle();
}

addEventListener("pagehide", save);
addEventListener("pageshow", (event) => {
  // The browser has kept the page, but not its connection.
  if (event.persisted) location.reload();
});

// Closing the page ends a terminal and what runs in it, but not a process. A reload ends neither.
addEventListener("beforeunload", (event) => {
  const reload = connection.canContinue && Date.now() - reloading < 2000;
  if (!isProcess && connection.live && !connection.viewer && role !== "viewer" && !reload) event.preventDefault();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  marked = false;
  showTitle();
});
// The start.

/** Asks the server what the token may do. Without a server, the connection tries on. */
async function learn() {
  for (;;) {
    try {
      about = await session();
      break;
    } catch (error) {
      if (error.status !== 401) break;
      await askForToken("This terminal requires a token.");
    }
  }
  if (about?.scope === "watch") connection.watchOnly();
  showShare();
}

$("app").hidden = false;
touchScreen.addEventListener("change", showKeys);
showKeys();
terminal.open($("terminal"));
correctReverseVideo(core);
moveFieldWithRows(core);
terminal.textarea.setAttribute("aria-describedby", "help");
chooseRenderer();
restore();
showTitle();
showReader();
showTheme();
layout();
update();
new ResizeObserver(relayout).observe(frame);
window.visualViewport?.addEventListener("resize", relayout);
window.visualViewport?.addEventListener("scroll", relayout);
frame.addEventListener("click", (event) => { if (!$("find").contains(/** @type {Node} */ (event.target))) terminal.focus(); });
await learn();
terminal.loadAddon(connection);
terminal.focus();
