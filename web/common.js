// Shared by the pages: the token, requests with it, the form that asks for it, and small helpers.
//
// A link carries the token in its fragment, which browsers send to no server: `/terminal#token=T&mode=viewer`. Links of older
// versions have `?token=T`. The token moves from the address to sessionStorage, so that a reload finds it. Other keys stay in
// the address.

/**
 * The path of the server's `/` in this browser. Behind a proxy, the server's paths may be below a path that it does not know, such as
 * `/tools/term/`. This file is at `.outrigger/web/` in any case.
 */
const ROOT = new URL("../../", import.meta.url).pathname;
/** Servers below different paths have different tokens. */
const KEY = ROOT === "/" ? "outrigger.token" : `outrigger.token ${ROOT}`;
const SESSION = "/.outrigger/session";

/** sessionStorage, or a replacement that forgets at a reload if the browser blocks it. */
export const storage = (() => {
  try {
    sessionStorage.getItem(KEY);
    return sessionStorage;
  } catch {
    const items = new Map();
    return {
      getItem: (key) => items.get(key) ?? null,
      setItem: (key, value) => {
        items.set(key, String(value));
      },
      removeItem: (key) => {
        items.delete(key);
      },
    };
  }
})();

/** The path of this page, as the server sees it. */
export const pagePath = location.pathname.startsWith(ROOT) ? location.pathname.slice(ROOT.length - 1) : location.pathname;

/** The URL of a path of this server. A path may begin with two slashes, which as a relative URL would name another host. */
export function serverUrl(path) {
  return new URL(`${location.origin}${ROOT}${path.startsWith("/") ? path.slice(1) : path}`);
}

const decode = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

/** The `key=value` pairs of a query or fragment as texts and decoded. Unlike URLSearchParams, `+` is a plus sign. */
const pairs = (text) =>
  text
    .split("&")
    .filter((pair) => pair)
    .map((pair) => {
      const at = pair.indexOf("=");
      return { pair, key: decode(at < 0 ? pair : pair.slice(0, at)), value: at < 0 ? "" : decode(pair.slice(at + 1)) };
    });

/** The keys of the address's fragment, without the token. */
export const fragment = new Map();

/** Moves the token from the address to the storage. Returns whether the address had one. */
function readAddress() {
  const inQuery = pairs(location.search.slice(1));
  const inFragment = pairs(location.hash.slice(1));
  fragment.clear();
  for (const { key, value } of inFragment) if (key !== "token") fragment.set(key, value);
  const found = [...inQuery, ...inFragment].filter(({ key }) => key === "token");
  if (!found.length) return false;
  setToken(found.at(-1).value);
  const rest = (list, prefix) => {
    const text = list
      .filter(({ key }) => key !== "token")
      .map(({ pair }) => pair)
      .join("&");
    return text && prefix + text;
  };
  history.replaceState(history.state, "", serverUrl(pagePath + rest(inQuery, "?") + rest(inFragment, "#")));
  return true;
}

/** The token, or "" without one. */
export function token() {
  return storage.getItem(KEY) ?? "";
}

/** Sets the token for this tab. An empty one removes it. */
export function setToken(text) {
  if (text) storage.setItem(KEY, text);
  else storage.removeItem(KEY);
}

readAddress();
// A link to this page with another token or another mode, opened in this tab, changes only the fragment.
addEventListener("hashchange", () => {
  const before = JSON.stringify([...fragment]);
  if (readAddress() || JSON.stringify([...fragment]) !== before) location.reload();
});

/** The subprotocols with which a WebSocket of this page presents the token. */
export function socketProtocols() {
  return token() ? ["outrigger", `outrigger.token.${token()}`] : ["outrigger"];
}

/** The WebSocket URL of a path of this server. */
export function socketUrl(path) {
  const url = serverUrl(path);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.hash = "";
  return url;
}

/** An error whose `status` is the HTTP status, or 0 if the server could not be reached. */
function failure(status, message) {
  return Object.assign(new Error(message), { status });
}

/**
 * Requests a path with the token. `options` are those of fetch; an object as `body` is sent as JSON.
 * Returns the Response, or throws an Error with `status` (0: the server could not be reached) and the server's message.
 */
export async function request(path, options = {}, secret = token()) {
  const headers = new Headers(options.headers);
  if (secret) headers.set("Authorization", `Bearer ${secret}`);
  // The server leaves requests with this field out of the figures that the console shows.
  headers.set("Outrigger-Console", "1");
  let { body } = options;
  if (body !== undefined && body !== null && Object.getPrototypeOf(body) === Object.prototype) {
    body = JSON.stringify(body);
    headers.set("Content-Type", "application/json");
  }
  let response;
  try {
    response = await fetch(serverUrl(path), { cache: "no-store", credentials: "same-origin", ...options, headers, body });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw failure(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  const text = await response.text().catch(() => "");
  let message = "";
  try {
    const answer = JSON.parse(text);
    message = [answer.message, answer.detail].filter(Boolean).join(": ");
  } catch {
    /* not JSON */
  }
  throw failure(response.status, message || `The server answered with status ${response.status}.`);
}

/** Like `request`, and returns the answer's JSON, or its text if it is not JSON. */
export async function api(path, options = {}) {
  const response = await request(path, options);
  const text = await response.text();
  return /\bjson\b/.test(response.headers.get("Content-Type") ?? "") ? JSON.parse(text) : text;
}

/** What the server says about this page's token. Undefined if the server does not know the question. */
export async function session() {
  try {
    return await api(SESSION);
  } catch (error) {
    if (error.status === 404) return undefined;
    throw error;
  }
}

/** Why a token cannot be used. Undefined if the server accepts it. */
async function objection(text) {
  if (!/^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/.test(text)) return "A browser cannot send a token with these characters.";
  try {
    await request(SESSION, {}, text);
    return undefined;
  } catch (error) {
    if (error.status === 404) return undefined;
    return error.status === 401 ? "The server does not accept this token." : error.message;
  }
}

let asking;

/** Shows a form that asks for the token. Resolves once the server has accepted one. `reason` says why it is needed. */
export function askForToken(reason) {
  asking ??= new Promise((resolve) => {
    const why = element("p", { id: "token-reason" }, reason ?? "This server requires a token.");
    const wrong = element("p", { id: "token-error", class: "error", role: "alert" });
    const input = element("input", {
      id: "token-input",
      type: "password",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: false,
      required: true,
      "aria-describedby": "token-reason token-error",
    });
    const button = element("button", { class: "primary" }, "Continue");
    const form = element(
      "form",
      {},
      element("h1", { id: "token-title" }, "Access token"),
      why,
      element("label", { for: "token-input" }, "Token"),
      input,
      wrong,
      element("div", { class: "actions" }, button),
    );
    const dialog = element("dialog", { class: "token", "aria-labelledby": "token-title" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    // `form-action 'none'` forbids to submit the form. It is never submitted.
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const text = input.value.trim();
      button.disabled = true;
      wrong.textContent = "";
      const refused = await objection(text);
      button.disabled = false;
      if (refused) {
        wrong.textContent = refused;
        input.select();
        return;
      }
      setToken(text);
      input.value = "";
      dialog.close();
      dialog.remove();
      asking = undefined;
      resolve();
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
  return asking;
}

/** The element with an id. */
export const $ = (id) => document.getElementById(id);

/**
 * The field of a form with an id.
 * @returns {HTMLInputElement}
 */
export const field = (id) => /** @type {HTMLInputElement} */ ($(id));

/**
 * Creates an element. An attribute whose name begins with "on" is a listener; true is an attribute without a value; undefined,
 * null and false are left out, as among the children. Children are nodes, texts, or arrays of these.
 * @returns {any} the element
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === "spellcheck") node.spellcheck = Boolean(value);
    else if (value === undefined || value === null || value === false) continue;
    else if (name.startsWith("on") && typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

/** A number of bytes, for people: `812 B`, `4.1 kB`, `2.0 MB`. */
export function formatBytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** A time span, for people: `4 s`, `3 min`, `2 h 5 min`, `3 d`. */
export function formatDuration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d`;
}

/** Resolves after some time. */
export const delay = (ms) =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
  });
