// An addon for xterm.js: connects a terminal of the page to a terminal or process of an Outrigger server.
//
// It survives cuts. If the server offers no resumable connections, a process continues at the byte of its output that was received
// last, and a terminal ends with the connection.

import { ResumableWebSocket } from "./resumable.js";

/** Input is sent in messages of at most this many bytes. */
const PIECE = 32 * 1024;
/** With this many unconfirmed bytes of input, no more is accepted. */
const KEPT = 1024 * 1024;
/** A connection that has lived this long is steady. */
const STEADY = 5000;
/** After this long without a connection, nobody may wait any more for the terminal's answers. */
const ANSWER_WITHIN = 2000;
/** How long this page's lost connection may count as the writer, in milliseconds. The page takes over from it. */
const OWN_PLACE = 10_000;
/** A window that is being resized rests after this time. */
const RESTS = 60;
/** The rows above the screen that a late client gets. */
const SCREEN_LINES = 500;
/** The closing codes of connections that were cut. */
const CUTS = [1001, 1005, 1006, 1012, 1013, 1015];

/** Reasons of a cut that explain nothing. The first one does if the connection was open. */
const UNKNOWN = ["the server does not answer", "the connection was lost", "the handshake takes too long"];

const encoder = new TextEncoder();

/** Whether an address is that of a process. Any other is one of a terminal, where each client has a program of its own. */
export const isProcessPath = (path) => /\/by-name\/[^/]+(\/attach)?$|\/[^/]+\/attach$/.test(path);

/**
 * @typedef {object} AddonOptions
 * @property {string[] | (() => string[])} [protocols] the subprotocols of the WebSocket, which may contain the token
 * @property {boolean} [viewer] whether to watch only
 * @property {number} [since] the byte of a process's output from which to continue
 * @property {boolean} [input] false: what the user types is not sent by itself; call `send`
 * @property {(data: Uint8Array) => void} [write] shows output, in place of `terminal.write`
 * @property {(size: {rows: number, cols: number}) => void} [size] shows the size of the writer's terminal to a viewer, in place of
 *   `terminal.resize`
 * @property {(message: string) => Promise<unknown>} [unauthorized] is called after the status 401; the addon tries again after it
 * @property {typeof WebSocket} [WebSocket] another class of WebSockets
 */

/**
 * A state has a `name`:
 * - "connecting": the first attempt;
 * - "open": messages flow; `behind`: the first of them are output from before this connection;
 * - "lost": the connection was cut at `since`, and the next attempt is at `next` (both in ms); `message` says why, if that is known;
 * - "refused": another client is the writer;
 * - "taken": another connection has replaced this one;
 * - "gone": the server does not have the conversation any more;
 * - "ended": the server has closed the connection with `code` and `message`.
 *
 * In "open" and "lost", `cuts` counts the connections in a row that were cut before they were steady.
 *
 * @typedef {{name: string, since?: number, next?: number, message?: string, behind?: boolean, cuts?: number, code?: number}} State
 */

/**
 * Events, each with `detail`: `state` with a State, and the server's events: `role`, `size`, `clients`, `process`, `screen`, `gap`,
 * `exit` and `error` (docs/protocols.md). `event` comes with each of these, too.
 */
export class OutriggerAddon extends EventTarget {
  /** @type {State} */
  state = { name: "connecting" };
  /** The number of bytes of a process's output so far, including those that were skipped. */
  offset;
  #url;
  #options;
  #isProcess;
  #again = "";
  #viewer;
  #takeover = false;
  #terminal;
  #disposables = [];
  #socket;
  #stopped = true;
  #anew = false;
  #since = 0;
  #left = 0;
  #cuts = 0;
  #isUnsteady = false;
  #steadyTimer;
  #sizeTimer;
  #sentSize = "";
  #saved;

  /**
   * @param {string | URL} url the address of a terminal, or `/process/ID/attach`, or `/process/by-name/NAME`
   * @param {AddonOptions} [options]
   */
  constructor(url, options = {}) {
    super();
    this.#url = new URL(url, globalThis.location?.href);
    this.#options = options;
    this.#isProcess = isProcessPath(this.#url.pathname);
    this.#viewer = Boolean(options.viewer);
    this.offset = options.since ?? 0;
  }

  get viewer() {
    return this.#viewer;
  }
  /** Whether the connection has not ended. */
  get live() {
    return !this.#stopped;
  }
  /** Whether the conversation can continue after a reload of the page. */
  get canContinue() {
    return this.live && Boolean(this.#socket?.resumable);
  }

  /** Connects. xterm.js calls it in `loadAddon`. */
  activate(terminal) {
    this.#terminal = terminal;
    const { input = true } = this.#options;
    this.#disposables.push(
      terminal.onResize(() => {
        clearTimeout(this.#sizeTimer);
        this.#sizeTimer = setTimeout(() => this.#sendSize(), RESTS);
      }),
    );
    if (input) {
      this.#disposables.push(terminal.onData((text) => this.send(encoder.encode(text))));
      this.#disposables.push(terminal.onBinary((text) => this.send(Uint8Array.from(text, (letter) => letter.charCodeAt(0)))));
    }
    this.#begin();
  }

  /** Ends the connection. The server ends the program of a terminal, and a process runs on. */
  dispose() {
    for (const one of this.#disposables.splice(0)) one.dispose();
    this.#drop();
  }

  /** The token may only watch. Call it before or in the first `role`. */
  watchOnly() {
    this.#viewer = true;
  }

  /** Begins a new conversation: as the writer or a viewer, and for a process from where its output was received last. */
  restart({ viewer = this.#viewer, takeover = false, fromStart = false } = {}) {
    this.#drop();
    this.#viewer = viewer;
    this.#takeover = takeover;
    this.#since = this.#left = this.#cuts = 0;
    if (fromStart) this.#again = "";
    if (fromStart || !this.#isProcess) this.offset = 0;
    this.#begin();
  }

  /** Sends input. Returns false if too much input is unconfirmed; then nothing of it is sent. */
  send(bytes) {
    if (this.#stopped || this.#viewer || !this.#socket) return true;
    if (this.#sizeTimer) this.#sendSize();
    if (this.#socket.bufferedAmount >= KEPT) return false;
    for (let at = 0; at < bytes.length; at += PIECE) this.#socket.send(bytes.slice(at, at + PIECE));
    return true;
  }

  /** Tries at once to come back. */
  retry() {
    this.#socket?.retry();
  }

  /**
   * For a page that is closed or reloaded, which it cannot tell apart. Returns what `restore` needs to continue, as an object for JSON,
   * or undefined if nothing can continue.
   *
   * A process is left for good if all input has been sent: the next connection continues at a byte of its output, and meanwhile
   * others can write. Anything else counts as a cut, which the browser makes of it.
   */
  suspend() {
    const socket = this.#socket;
    if (this.#stopped || !socket) return undefined;
    const rest = { offset: this.offset, again: this.#again, at: Date.now() };
    if (this.#isProcess && (this.#viewer || (socket.connected && socket.flushed) || !socket.resumable)) {
      this.#drop();
      return rest;
    }
    const resume = socket.suspend();
    return resume && { ...rest, resume, sentSize: this.#sentSize };
  }

  /** Continues what `suspend` has returned. Call it before `loadAddon`. */
  restore({ offset, again, at, resume, sentSize }) {
    this.offset = offset;
    this.#again = again;
    if (resume) {
      this.#saved = resume;
      this.#sentSize = sentSize;
      this.#left = at;
    } else {
      // The server may not have noticed yet that this page's last connection has ended.
      this.#takeover = !this.#viewer && Date.now() - at < OWN_PLACE;
    }
  }

  #begin() {
    this.#stopped = this.#anew = false;
    this.#set({ name: "connecting" });
    const { protocols = [], unauthorized, WebSocket } = this.#options;
    // A viewer of a process needs no more than the number of the last byte.
    const resume = !(this.#viewer && this.#isProcess);
    const options = {
      early: true,
      unauthorized,
      resume,
      renew: (end) => this.#renews(end),
      state: this.#saved,
      ...(WebSocket && { WebSocket }),
    };
    this.#saved = undefined;
    let socket;
    try {
      socket = new ResumableWebSocket((resumes) => this.#address(resumes), protocols, options);
    } catch {
      // The token has characters that a subprotocol cannot have.
      const message = "A browser cannot send this token.";
      if (!unauthorized) return this.#closed({ code: 1006, reason: message, status: 401 });
      unauthorized(message).then(() => {
        if (!this.#socket && !this.#stopped) this.#begin();
      });
      return;
    }
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    // A socket that was dropped still closes.
    const on = (type, act) =>
      socket.addEventListener(type, (event) => {
        if (this.#socket === socket) act(event);
      });
    on("open", () => this.#opened(true));
    on("resume", () => this.#opened(false));
    on("message", ({ data }) => this.#receive(data));
    on("cut", (event) => this.#cut(event));
    on("close", (event) => this.#closed(event));
  }

  #drop() {
    clearTimeout(this.#steadyTimer);
    clearTimeout(this.#sizeTimer);
    this.#sizeTimer = undefined;
    this.#stopped = true;
    const socket = this.#socket;
    this.#socket = undefined;
    socket?.close();
  }

  /** The address of the next connection. */
  #address(resumes) {
    const url = new URL(this.#url);
    if (!resumes && this.#again) url.pathname = this.#again;
    const query = url.searchParams;
    for (const key of ["token", "rows", "cols", "mode", "takeover", "since", "replay", "lines"]) query.delete(key);
    if (this.#viewer) query.set("mode", "viewer");
    if (resumes) return url;
    this.#sentSize = this.#size();
    if (!this.#viewer) {
      query.set("rows", String(this.#terminal.rows));
      query.set("cols", String(this.#terminal.cols));
    }
    // After a longer absence, the writer is probably another client.
    if (this.#takeover && (!this.#since || Date.now() - this.#since < OWN_PLACE)) query.set("takeover", "1");
    if (this.#isProcess) {
      query.set("replay", "screen");
      query.set("lines", String(SCREEN_LINES));
      if (this.offset) query.set("since", String(this.offset));
    }
    return url;
  }

  #size() {
    return JSON.stringify({ type: "resize", rows: this.#terminal.rows, cols: this.#terminal.cols });
  }

  #sendSize() {
    clearTimeout(this.#sizeTimer);
    this.#sizeTimer = undefined;
    const text = this.#size();
    if (this.#stopped || this.#viewer || text === this.#sentSize) return;
    this.#sentSize = text;
    this.#socket?.send(text);
  }

  #set(state) {
    this.state = state;
    this.#tell("state", state);
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  #opened(fresh) {
    const away = Date.now() - (this.#since || this.#left || Date.now());
    this.#since = this.#left = 0;
    this.#takeover = this.#anew = false;
    clearTimeout(this.#steadyTimer);
    this.#steadyTimer = setTimeout(() => {
      this.#isUnsteady = false;
      if (!this.#cuts) return;
      this.#cuts = 0;
      this.#set({ name: "open", cuts: 0 });
    }, STEADY);
    this.#set({ name: "open", behind: fresh ? this.#isProcess : away > ANSWER_WITHIN, cuts: this.#cuts });
    this.#sendSize();
  }

  #cut({ code, reason, retryAt }) {
    clearTimeout(this.#steadyTimer);
    const wasOpen = this.state.name === "open";
    if (wasOpen) {
      if (this.#isUnsteady) this.#cuts++;
      this.#isUnsteady = true;
    }
    this.#since ||= Date.now();
    // The server restarts and has ended the program. The next one begins a new conversation.
    if (code === 1012 && !this.#isProcess) this.#anew = true;
    const says = UNKNOWN.includes(reason) && !(wasOpen && reason === UNKNOWN[0]) ? undefined : reason;
    const known = { 1001: "the server has stopped", 1012: "the server restarts" }[code] ?? says;
    this.#set({ name: "lost", since: this.#since, next: retryAt, message: known ?? this.state.message, cuts: this.#cuts });
  }

  /** Whether another conversation begins after one that cannot continue. */
  #renews({ code, status }) {
    if (status === 410 || status === 400) return this.#isProcess || this.#anew;
    if (status || !CUTS.includes(code)) return false;
    if (!this.#isProcess) return code === 1012;
    // The server may still count the lost connection as the writer.
    this.#takeover = !this.#viewer;
    return true;
  }

  #closed({ code, reason, status }) {
    this.#socket = undefined;
    this.#drop();
    if (code === 4001) this.#set({ name: "taken" });
    else if (code === 4009 || status === 409) this.#set({ name: "refused" });
    else if ([400, 404, 410].includes(status) || (!status && CUTS.includes(code))) this.#set({ name: "gone" });
    else this.#set({ name: "ended", code: status || code, message: reason });
  }

  #receive(data) {
    if (typeof data !== "string") {
      this.offset += data.byteLength;
      this.#write(new Uint8Array(data));
      return;
    }
    let event;
    try {
      event = JSON.parse(data);
    } catch {
      return;
    }
    if (!event || typeof event !== "object") return;
    const { type } = event;
    // Another process may have the name when this page comes back on a new connection.
    if (type === "process") this.#again = this.#url.pathname.replace(/by-name\/[^/]+(\/attach)?$/, `${event.process_id}/attach`);
    if (type === "role" && this.#isProcess && event.role === "viewer") this.#viewer = true;
    if (type === "gap" && Number.isSafeInteger(event.to)) this.offset = event.to;
    if (type === "screen") {
      if (Number.isSafeInteger(event.offset)) this.offset = event.offset;
      this.#terminal.reset();
      this.#write(encoder.encode(event.data));
    }
    if (type === "size" && !(Number.isInteger(event.rows) && Number.isInteger(event.cols) && event.rows > 0 && event.cols > 0)) return;
    if (type === "size" && this.#viewer) {
      const size = { rows: event.rows, cols: event.cols };
      if (this.#options.size) this.#options.size(size);
      else this.#terminal.resize(size.cols, size.rows);
    }
    if (typeof type === "string" && type !== "state" && type !== "event") this.#tell(type, event);
    this.#tell("event", event);
  }

  #write(bytes) {
    if (this.#options.write) this.#options.write(bytes);
    else this.#terminal.write(bytes);
  }
}
