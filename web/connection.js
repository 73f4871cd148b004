// A connection to a terminal or process of the server, for the terminal page.
//
// It survives cuts (docs/surviving-disconnects.md): it counts the received messages, keeps the input that the server may not
// have received, and comes back until it succeeds. If the server offers no resumable connections, a process continues at the
// byte of its output that was received last, and a terminal ends with the connection.

import { socketProtocols, socketUrl, token } from "./common.js";

/** Input is sent in messages of at most this many bytes. */
const PIECE = 32 * 1024;
/** While the browser holds this much unsent input, no more is given to it. */
const BUFFERED = 256 * 1024;
/** With this much unconfirmed input, no more is accepted. */
const KEPT = 1024 * 1024;
/** With this much unconfirmed input, the page comes back on a new connection to learn what the server has received. */
const CONFIRM = 512 * 1024;
const FIRST_DELAY = 200;
const LAST_DELAY = 10_000;
/** A connection that has lived this long is steady: after a cut, the page comes back at once. */
const STEADY = 5000;
/** After a cut of a connection that has carried this much output, the page comes back soon. */
const USEFUL = 64 * 1024;
/** After this long without a connection, nobody may wait any more for the terminal's answers. */
const ANSWER_WITHIN = 2000;
const HANDSHAKE_TIMEOUT = 15_000;
/** This long without a message is suspicious. */
const SILENCE = 5000;
/** How long the answer to the question whether the server is there may take. Together, a dead connection is noticed within 10 s. */
const PATIENCE = 3500;
/** What everybody may ask for, to learn whether the server can be reached. */
const REACHABLE = "/favicon.ico";
/** How long this page's lost connection may count as the writer, in milliseconds. The page takes over from it. */
const OWN_PLACE = 10_000;
/** The rows above the screen that the page asks for. */
const SCREEN_LINES = 500;

const size = (message) => message.length;
const encode = (bytes) => {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
};
const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/**
 * `handlers` are `output(bytes)`, `event(object)` for each text message, `state(state)`, and `unauthorized(message)`, which
 * returns a promise that resolves once there is another token.
 *
 * A state has a `name`:
 * - "connecting": the first attempt;
 * - "open": messages flow; `behind`: the first of them are output from before this connection;
 * - "lost": the connection was cut at `since`, and the next attempt is at `next` (both in ms; `next` is 0 during an attempt);
 *   `message` says why, if that is known;
 *
 * In "open" and "lost", `cuts` counts the connections in a row that were cut before they were steady.
 *
 * - "refused": another client is the writer;
 * - "taken": another connection has replaced this one;
 * - "gone": the server does not have the conversation any more;
 * - "ended": the server has closed the connection with `code` and `message`.
 */
export class Connection {
  #path; #again; #isProcess; #handlers;
  #mode; #takeover = false; #size = { rows: 24, cols: 80 }; #sentSize = "";
  #socket; #open = false; #resumable = false; #attempts = 0; #timer; #since = 0; #stopped = false; #heard = 0; #generation = 0; #checked = 0; #checkAfter = 0;
  #cuts = 0; #carried = 0; #steadyTimer; #left = 0;
  #resume = "new"; #received = 0; #confirmed = 0; #kept = []; #next = 0; #keptBytes = 0; #pumpTimer; #confirmAfter = 0; #refresh = 1000;
  #offset = 0;
  state = { name: "connecting" };

  constructor(path, { isProcess, viewer, handlers }) {
    this.#path = path;
    this.#isProcess = isProcess;
    this.#mode = viewer ? "viewer" : "writer";
    this.#handlers = handlers;
  }

  get viewer() { return this.#mode === "viewer"; }
  /** Whether the conversation can continue after a reload of the page. */
  get canContinue() { return this.#resumable && !this.#stopped; }
  get live() { return !this.#stopped; }

  /**
   * Ends the connection because the page is closed or reloaded, which a page cannot tell apart. Returns what `restore` needs to
   * continue, or undefined if nothing can continue.
   *
   * A process is left for good if all input has been sent: the next connection continues at a byte of its output, and meanwhile
   * others can write. Anything else counts as a cut, which the browser makes of it.
   */
  suspend() {
    if (this.#stopped) return undefined;
    const sent = this.#open && this.#next === this.#kept.length && this.#socket.bufferedAmount === 0;
    if (this.#isProcess && (this.viewer || sent || !this.#resumable)) {
      this.#drop(1000);
      return { left: Date.now(), offset: this.#offset, again: this.#again };
    }
    if (!this.#resumable) return undefined;
    const kept = this.#kept.map((message) => typeof message === "string" ? { text: message } : { bytes: encode(message) });
    return { resume: this.#resume, received: this.#received, confirmed: this.#confirmed, kept, offset: this.#offset, again: this.#again, sentSize: this.#sentSize, suspended: Date.now() };
  }

  restore({ left, resume, received, confirmed, kept, offset, again, sentSize, suspended }) {
    this.#offset = offset;
    this.#again = again;
    if (left) {
      // After a reload, the server may not have noticed yet that this page's last connection has ended.
      this.#takeover = !this.viewer && Date.now() - left < OWN_PLACE;
      return;
    }
    this.#resume = resume;
    this.#received = received;
    this.#confirmed = confirmed;
    this.#kept = kept.map(({ text, bytes }) => text ?? decode(bytes));
    this.#keptBytes = this.#kept.reduce((sum, message) => sum + size(message), 0);
    this.#sentSize = sentSize;
    this.#left = suspended;
    this.#resumable = true;
  }

  start(rows, cols) {
    this.#size = { rows, cols };
    this.#connect();
  }

  /** Begins a new conversation: as the writer or a viewer, and for a process from where its output was received last. */
  restart({ viewer = this.viewer, takeover = false, fromStart = false } = {}) {
    this.#drop(1000);
    this.#mode = viewer ? "viewer" : "writer";
    this.#takeover = takeover;
    this.#stopped = false;
    this.#attempts = this.#cuts = 0;
    this.#since = 0;
    this.#forget();
    if (fromStart) this.#again = undefined;
    if (fromStart || !this.#isProcess) this.#offset = 0;
    this.#connect();
  }

  /** The token may only watch. */
  watchOnly() {
    this.#mode = "viewer";
  }

  /** Leaves for good: the server does not wait for this client. */
  leave() {
    this.#stopped = true;
    this.#drop(1000);
  }

  /** Sends input. Returns false if too much input is unconfirmed; then nothing of it is sent. */
  send(bytes) {
    if (this.#stopped || this.viewer) return true;
    if (this.#keptBytes >= KEPT) return false;
    for (let at = 0; at < bytes.length; at += PIECE) this.#keep(bytes.slice(at, at + PIECE));
    this.#pump();
    return true;
  }

  resize(rows, cols) {
    this.#size = { rows, cols };
    this.#sendSize();
  }

  /** Tries at once to come back, and checks a connection that seems to be open after the network has changed. */
  wake(suspicious = false) {
    if (this.#stopped) return;
    if (this.#timer) this.#connect();
    else if (suspicious && this.#open && this.#resumable) {
      const heard = this.#heard;
      setTimeout(() => { if (this.#open && this.#heard === heard) this.#cut(); }, 1000);
    }
  }

  /** The browser is offline. */
  lose() {
    if (this.#open && (this.#resumable || this.#isProcess)) this.#cut("The browser is offline");
  }

  /**
   * A browser notices a dead network late, and a page does not see PINGs. If nothing was heard for a while, this asks whether the
   * server can be reached. Call it every second while the page is visible.
   */
  async check() {
    const now = Date.now();
    if (this.#heard !== this.#checked) {
      this.#checked = this.#heard;
      this.#checkAfter = now + SILENCE;
    }
    if (now < this.#checkAfter || !this.#open || !this.#resumable) return;
    this.#checkAfter = now + SILENCE;
    const heard = this.#heard;
    const generation = this.#generation;
    const options = { cache: "no-store", signal: AbortSignal.timeout(PATIENCE), headers: { "Outrigger-Console": "1" } };
    const reached = await fetch(REACHABLE, options).then(() => true, () => false);
    if (!reached && this.#open && this.#heard === heard && this.#generation === generation) this.#cut();
  }

  #forget() {
    this.#resume = "new";
    this.#received = this.#confirmed = this.#next = this.#keptBytes = 0;
    this.#kept = [];
    this.#sentSize = "";
    this.#resumable = false;
  }

  #keep(message) {
    this.#kept.push(message);
    this.#keptBytes += size(message);
  }

  #confirm(received) {
    const confirmed = this.#kept.splice(0, Math.max(0, received - this.#confirmed));
    this.#confirmed += confirmed.length;
    for (const message of confirmed) this.#keptBytes -= size(message);
    return confirmed.length;
  }

  #resizeMessage() {
    return JSON.stringify({ type: "resize", ...this.#size });
  }

  #sendSize() {
    const text = this.#resizeMessage();
    if (!this.#open || this.viewer || text === this.#sentSize) return;
    this.#sentSize = text;
    this.#keep(text);
    this.#pump();
  }

  /** Gives the browser what it has room for. */
  #pump() {
    clearTimeout(this.#pumpTimer);
    if (!this.#open) return;
    const socket = this.#socket;
    while (this.#next < this.#kept.length && socket.bufferedAmount < BUFFERED) socket.send(this.#kept[this.#next++]);
    if (!this.#resumable) {
      // Nothing can be sent again.
      for (const message of this.#kept.splice(0, this.#next)) this.#keptBytes -= size(message);
      this.#next = 0;
    }
    const busy = this.#next < this.#kept.length || socket.bufferedAmount > 0;
    const confirm = this.#resumable && this.#keptBytes >= CONFIRM;
    if (!busy && confirm && Date.now() >= this.#confirmAfter) {
      this.#confirmAfter = Date.now() + this.#refresh;
      this.#refresh = Math.min(2 * this.#refresh, LAST_DELAY);
      // This is no failure, so the next connection comes at once.
      this.#since ||= Date.now();
      return this.#connect();
    }
    if (busy || confirm) this.#pumpTimer = setTimeout(() => this.#pump(), 50);
  }

  /** Ends the connection in a way that the server takes for a cut. */
  #cut(message) {
    this.#drop(4000);
    this.#comeBack(message);
  }

  #drop(code) {
    clearTimeout(this.#timer);
    clearTimeout(this.#pumpTimer);
    clearTimeout(this.#steadyTimer);
    this.#timer = undefined;
    this.#generation++;
    this.#open = false;
    const socket = this.#socket;
    this.#socket = undefined;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
    socket.close(code);
  }

  #url() {
    const url = socketUrl((this.#resume === "new" && this.#again) || this.#path);
    const query = url.searchParams;
    for (const key of ["token", "rows", "cols", "mode", "takeover", "since", "resume", "received", "notice", "replay", "lines"]) query.delete(key);
    if (this.viewer) query.set("mode", "viewer");
    // A viewer of a process needs no more than the number of the last byte.
    if (!this.viewer || !this.#isProcess) {
      query.set("notice", "1");
      query.set("resume", this.#resume);
    }
    if (this.#resume === "new") {
      if (!this.viewer) { query.set("rows", this.#size.rows); query.set("cols", this.#size.cols); }
      // After a longer absence, the writer is probably another client.
      const isOwn = !this.#since || Date.now() - this.#since < OWN_PLACE;
      if (this.#takeover && isOwn) query.set("takeover", "1");
      if (this.#isProcess) { query.set("replay", "screen"); query.set("lines", SCREEN_LINES); }
      if (this.#isProcess && this.#offset) query.set("since", this.#offset);
    } else {
      query.set("received", this.#received);
    }
    return url;
  }

  #set(state) {
    this.state = state;
    this.#handlers.state(state);
  }

  #stop(state) {
    this.#drop(1000);
    this.#stopped = true;
    this.#set(state);
  }

  #connect() {
    this.#drop(4000);
    const url = this.#url();
    const asked = this.#resizeMessage();
    this.#set(this.#since ? { name: "lost", since: this.#since, next: 0, message: this.state.message, cuts: this.#cuts } : { name: "connecting" });
    let socket;
    try {
      socket = new WebSocket(url, socketProtocols());
    } catch {
      // The token has characters that a subprotocol cannot have.
      this.#unauthorized("A browser cannot send this token.");
      return;
    }
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    const timeout = setTimeout(() => {
      if (this.#socket !== socket || socket.readyState !== WebSocket.CONNECTING) return;
      this.#drop(4000);
      this.#comeBack();
    }, HANDSHAKE_TIMEOUT);
    socket.onmessage = ({ data }) => {
      this.#heard++;
      if (this.#open) return this.#message(data);
      clearTimeout(timeout);
      const notice = typeof data === "string" && data.startsWith('{"outrigger":') ? JSON.parse(data).outrigger : undefined;
      if (this.#resume !== "new" && !notice) return this.#stop({ name: "gone" });
      const fresh = this.#resume === "new";
      if (fresh) this.#sentSize = asked;
      const behind = fresh ? this.#isProcess : Date.now() - (this.#since || this.#left || Date.now()) > ANSWER_WITHIN;
      this.#open = true;
      this.#carried = 0;
      this.#steadyTimer = setTimeout(() => this.#steady(), STEADY);
      this.#since = 0;
      this.#takeover = false;
      this.#resumable = Boolean(notice);
      this.#next = 0;
      if (notice) {
        this.#resume = notice.resume;
        if (this.#confirm(notice.received)) this.#refresh = 1000;
      }
      this.#set({ name: "open", behind, cuts: this.#cuts });
      if (this.#socket !== socket) return;
      this.#sendSize();
      this.#pump();
      if (!notice) this.#message(data);
    };
    socket.onclose = ({ code, reason }) => {
      clearTimeout(timeout);
      const opened = this.#open;
      if (opened && this.#attempts) this.#cuts++;
      this.#drop();
      if (opened || code !== 1006) this.#closed(code, reason); else this.#failed(url);
    };
  }

  /** The connection works: the next cut is the first one again. */
  #steady() {
    this.#attempts = 0;
    if (!this.#cuts) return;
    this.#cuts = 0;
    this.#set({ name: "open", cuts: 0 });
  }

  #message(data) {
    this.#received++;
    if (typeof data !== "string") {
      this.#offset += data.byteLength;
      this.#carried += data.byteLength;
      if (this.#carried >= USEFUL) this.#attempts = Math.min(this.#attempts, 1);
      this.#handlers.output(new Uint8Array(data));
      return;
    }
    let event;
    try { event = JSON.parse(data); } catch { return; }
    // Another process may have the name when this page comes back on a new connection.
    if (event?.type === "process") this.#again = this.#path.replace(/by-name\/[^/?]+(\/attach)?/, `${event.process_id}/attach`);
    if (event?.type === "screen" && Number.isSafeInteger(event.offset)) this.#offset = event.offset;
    if (event?.type === "gap" && Number.isSafeInteger(event.to)) this.#offset = event.to;
    if (event && typeof event === "object") this.#handlers.event(event);
  }

  #closed(code, reason) {
    if (code === 4001) return this.#stop({ name: "taken" });
    if (code === 4009) return this.#stop({ name: "refused" });
    if (code === 1012 && !this.#isProcess) {
      // The server restarts and has ended the program. The next one begins a new conversation.
      this.#forget();
      return this.#comeBack("The server restarts", true);
    }
    // 1001: the server stops, and may start again. 1005, 1006 and 1015: the connection was cut.
    if ([1001, 1005, 1006, 1012, 1013, 1015].includes(code)) return this.#comeBack(code === 1001 ? "The server has stopped" : undefined);
    return this.#stop({ name: "ended", code, message: reason });
  }

  /** Learns why a handshake has failed, which a browser does not tell: the same request over HTTP has the same answer. */
  async #failed(url) {
    const request = new URL(url);
    request.protocol = url.protocol === "wss:" ? "https:" : "http:";
    const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
    const generation = this.#generation;
    let status = 0;
    let message;
    try {
      const response = await fetch(request, { headers, cache: "no-store", signal: AbortSignal.timeout(HANDSHAKE_TIMEOUT) });
      status = response.status;
      message = (await response.json().catch(() => undefined))?.message;
    } catch { /* the server cannot be reached */ }
    if (generation !== this.#generation) return;
    if (status === 401) return this.#unauthorized(message);
    if (status === 409) return this.#stop({ name: "refused" });
    if (status === 410 || status === 400) return this.#lost();
    if (status === 403 || status === 404) return this.#stop({ name: status === 404 ? "gone" : "ended", code: status, message });
    this.#comeBack(status === 426 ? undefined : message);
  }

  async #unauthorized(message) {
    const generation = this.#generation;
    await this.#handlers.unauthorized(message);
    if (generation === this.#generation) this.#connect();
  }

  /** The server does not have the conversation any more. A process may still be there. */
  #lost() {
    if (this.#resume === "new" || !this.#isProcess) return this.#stop({ name: "gone" });
    const unsent = this.#kept.slice(this.#next).filter((message) => typeof message !== "string");
    this.#forget();
    for (const message of unsent) this.#keep(message);
    this.#connect();
  }

  #comeBack(message, anew = false) {
    this.#since ||= Date.now();
    if (!this.#resumable && !this.#isProcess && !anew && this.state.name === "open") return this.#stop({ name: "gone" });
    const longest = this.#attempts ? Math.min(FIRST_DELAY * 2 ** (this.#attempts - 1), LAST_DELAY) : 0;
    const wait = longest * (0.5 + 0.5 * Math.random());
    this.#attempts++;
    // Without a resumable connection, the server may still count the lost connection as the writer.
    if (!this.#resumable && !anew && !this.viewer && this.state.name === "open") this.#takeover = true;
    this.#set({ name: "lost", since: this.#since, next: Date.now() + wait, message: message ?? this.state.message, cuts: this.#cuts });
    if (this.#stopped || this.#socket || this.#timer) return;
    this.#timer = setTimeout(() => this.#connect(), wait);
  }
}
