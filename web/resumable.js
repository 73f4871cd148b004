// A WebSocket that survives cuts: every message arrives exactly once and in order, in both directions.
// See docs/surviving-disconnects.md for the protocol. It is used like a WebSocket, and has a few events and methods more.

/** A connection that has lived this long is steady: after its cut, the first attempt follows at once. */
const STEADY = 5000;
const HANDSHAKE_TIMEOUT = 15_000;
/** With this many unconfirmed bytes, the socket comes back on a new connection to learn what the server has received. */
const CONFIRM = 1024 * 1024;
/** The closing codes of a connection that was cut, or whose server stops and may start again. */
const CUTS = [1001, 1005, 1006, 1012, 1013, 1015];

const sizeOf = (data) => data.size ?? data.byteLength ?? data.length;
const valueOf = (value) => (typeof value === "function" ? value() : value);
/** A view of memory that its owner may change, as a copy. */
const copyOf = (data) =>
  typeof data === "string" || !(data instanceof ArrayBuffer || ArrayBuffer.isView(data))
    ? data
    : new Uint8Array(ArrayBuffer.isView(data) ? data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength) : data.slice(0));

/** An event with fields. Node 20 has no CloseEvent. */
const event = (type, fields) => Object.assign(new Event(type), fields);

/**
 * @typedef {object} Options
 * @property {number} [minDelay] the longest delay before the second attempt to come back, in milliseconds: 200
 * @property {number} [maxDelay] the longest delay between later attempts: 10,000
 * @property {number} [deadAfter] while the page is visible, this long without a message makes the socket ask whether the server can
 *   be reached. Without an answer, the connection counts as cut before twice the time has passed: 5,000. 0: it does not ask
 * @property {boolean} [early] whether `send` before the first connection keeps the message instead of throwing
 * @property {typeof WebSocket} [WebSocket] another class of WebSockets
 * @property {typeof fetch} [fetch] another function to learn why a handshake has failed
 * @property {(message: string) => Promise<unknown>} [unauthorized] is called after the status 401; the socket tries again after it
 */

/**
 * Events beside those of a WebSocket: `cut` with `{reason, retryAt}` when the connection is lost or an attempt has failed, and
 * `resume` when it is back. `close` says that the conversation has ended: the server has ended it (`code` and `reason` of the
 * CLOSE frame), or it cannot be resumed (`code` 1006, and `status` has the HTTP status, such as 410).
 */
export class ResumableWebSocket extends EventTarget {
  static CONNECTING = 0;
  static OPEN = 1;
  static CLOSING = 2;
  static CLOSED = 3;
  CONNECTING = 0;
  OPEN = 1;
  CLOSING = 2;
  CLOSED = 3;
  readyState = 0;
  /** Whether messages flow now. */
  connected = false;
  /** Whether the server offers to resume. If it does not, the first cut ends the conversation. */
  resumable = false;
  protocol = "";
  extensions = "";
  /** The number of messages that were given to `send`. */
  sent = 0;
  /** The number of messages that have arrived. */
  received = 0;
  onopen = null;
  onmessage = null;
  onerror = null;
  onclose = null;
  oncut = null;
  onresume = null;
  #binaryType = "blob"; #url; #protocols; #options;
  #socket; #token = "new"; #kept = []; #keptBytes = 0; #next = 0; #confirmed = 0;
  #attempts = 0; #timer; #steadyTimer; #ticker; #heard = 0; #pumpTimer; #confirmAfter = 0; #refresh = 1000; #unlisten = () => {};

  /**
   * @param {string | URL | (() => string | URL)} url the address, or a function that is called for each connection
   * @param {string | string[] | (() => string | string[])} [protocols] the subprotocols, or such a function
   * @param {Options} [options]
   */
  constructor(url, protocols = [], options = {}) {
    super();
    this.#url = url;
    this.#protocols = protocols;
    this.#options = { minDelay: 200, maxDelay: 10_000, deadAfter: 5000, ...options };
    this.#address();
    this.#listen();
    this.#connect();
  }

  get binaryType() { return this.#binaryType; }
  set binaryType(type) {
    this.#binaryType = type;
    if (this.#socket) this.#socket.binaryType = type;
  }

  get url() { return this.#address().href; }
  /** The bytes that the server may not have received. */
  get bufferedAmount() { return this.#keptBytes; }
  /** The messages that the server may not have received, in order. */
  get unconfirmed() { return [...this.#kept]; }

  /** @param {string | ArrayBuffer | ArrayBufferView | Blob} data */
  send(data) {
    if (this.readyState === 0 && !this.#options.early) throw new DOMException("the socket is not open yet", "InvalidStateError");
    if (this.readyState > 1) return;
    this.#kept.push(copyOf(data));
    this.#keptBytes += sizeOf(data);
    this.sent++;
    this.#pump();
  }

  /**
   * Says that the server has received the first `count` messages, for example because it has answered a request. The socket need not
   * keep them any longer.
   * @param {number} count
   */
  confirm(count) {
    const most = Math.min(count - this.#confirmed, this.#next);
    if (most <= 0) return;
    for (const message of this.#kept.splice(0, most)) this.#keptBytes -= sizeOf(message);
    this.#confirmed += most;
    this.#next -= most;
  }

  /** Tries to come back at once. */
  retry() {
    if (this.#timer && !this.#socket) this.#connect();
  }

  /** Ends the conversation. */
  close(code = 1000, reason = "") {
    if (this.readyState > 1) return;
    if (code !== 1000 && !(code >= 3000 && code <= 4999)) throw new DOMException("the code is not allowed", "InvalidAccessError");
    this.readyState = 2;
    if (this.#socket?.readyState === 1) this.#socket.close(code, reason);
    else this.#end(1006, "");
  }

  #address() {
    const url = new URL(valueOf(this.#url), globalThis.location?.href);
    url.protocol = url.protocol.replace(/^http/, "ws");
    url.hash = "";
    return url;
  }

  #dispatch(one) {
    this[`on${one.type}`]?.(one);
    this.dispatchEvent(one);
  }

  /** Follows what a browser tells about the network. */
  #listen() {
    const page = globalThis.document;
    if (!page) return;
    const wake = () => page.visibilityState === "visible" && this.retry();
    const lose = () => this.#socket && this.#cut("the browser is offline");
    const all = [[globalThis, "online", wake], [globalThis, "pageshow", wake], [page, "visibilitychange", wake], [globalThis, "offline", lose]];
    for (const [target, type, listener] of all) target.addEventListener(type, listener);
    this.#unlisten = () => { for (const [target, type, listener] of all) target.removeEventListener(type, listener); };
    if (this.#options.deadAfter) this.#ticker = setInterval(() => this.#check(), 1000);
  }

  /** A browser notices a dead network late, and a page does not see PINGs. So a socket without messages asks for a file. */
  async #check() {
    const { deadAfter, fetch = globalThis.fetch } = this.#options;
    const socket = this.#socket;
    if (globalThis.document.visibilityState !== "visible" || !this.connected || Date.now() < this.#heard + deadAfter) return;
    const heard = this.#heard = Date.now();
    const url = new URL("/favicon.ico", this.#address());
    url.protocol = url.protocol.replace("ws", "http");
    const options = { cache: "no-store", mode: "no-cors", credentials: "omit", signal: AbortSignal.timeout(0.7 * deadAfter) };
    const answered = await fetch(url, options).then(() => true, () => false);
    if (!answered && this.connected && this.#socket === socket && this.#heard === heard) this.#cut("the server does not answer");
  }

  #connect() {
    this.#drop(4000);
    const isNew = this.#token === "new";
    const url = this.#address();
    url.searchParams.set("resume", this.#token);
    url.searchParams.set("notice", "1");
    if (!isNew) url.searchParams.set("received", this.received);
    let socket;
    try {
      socket = new (this.#options.WebSocket ?? globalThis.WebSocket)(url, valueOf(this.#protocols));
    } catch (error) {
      if (!this.sent && !this.#attempts) throw error;
      return this.#end(1006, error.message);
    }
    this.#socket = socket;
    socket.binaryType = this.#binaryType;
    this.#timer = setTimeout(() => this.#cut("the handshake takes too long"), HANDSHAKE_TIMEOUT);
    socket.onopen = () => isNew && this.#opened(socket);
    let first = true;
    socket.onmessage = ({ data }) => {
      this.#heard = Date.now();
      const notice = first && typeof data === "string" && data.startsWith('{"outrigger":') ? JSON.parse(data).outrigger : undefined;
      const wasFirst = first;
      first = false;
      if (notice) return this.#noticed(socket, notice);
      if (wasFirst && !isNew) return this.#end(1006, "the server has not resumed the conversation");
      this.received++;
      // There is progress, so the next attempt need not wait long.
      this.#attempts = Math.min(this.#attempts, 1);
      if (!this.resumable) this.confirm(this.sent);
      this.#dispatch(event("message", { data, origin: url.origin }));
    };
    let closed = false;
    // Node reports a failed handshake only with `error`.
    socket.onerror = socket.onclose = ({ code = 1006, reason = "" }) => {
      if (closed || this.#socket !== socket) return;
      closed = true;
      if (this.connected || code !== 1006) this.#closed(code, reason);
      else this.#failed(url);
    };
  }

  /** The conversation begins or continues. */
  #opened(socket) {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.connected = true;
    this.#heard = Date.now();
    this.protocol = socket.protocol;
    this.extensions = socket.extensions;
    this.#steadyTimer = setTimeout(() => { this.#attempts = 0; }, STEADY);
    const isFirst = this.readyState === 0;
    if (isFirst) this.readyState = 1;
    this.#dispatch(event(isFirst ? "open" : "resume", {}));
    this.#pump();
  }

  #noticed(socket, { resume, received }) {
    this.resumable = true;
    const isBack = this.#token !== "new";
    this.#token = resume;
    if (!isBack) return;
    const before = this.#confirmed;
    this.#next = this.#kept.length;
    this.confirm(received);
    if (this.#confirmed > before) this.#refresh = 1000;
    this.#next = 0;
    this.#opened(socket);
  }

  /** Gives the messages to the connection. */
  #pump() {
    clearTimeout(this.#pumpTimer);
    if (!this.connected) return;
    while (this.#next < this.#kept.length) this.#socket.send(this.#kept[this.#next++]);
    if (!this.resumable || this.#keptBytes < CONFIRM) return;
    if (this.#socket.bufferedAmount || Date.now() < this.#confirmAfter) {
      this.#pumpTimer = setTimeout(() => this.#pump(), 100);
      return;
    }
    this.#confirmAfter = Date.now() + this.#refresh;
    this.#refresh = Math.min(2 * this.#refresh, this.#options.maxDelay);
    this.#connect();
  }

  #closed(code, reason) {
    if (this.readyState === 2 || !CUTS.includes(code)) return this.#end(code, reason, true);
    this.#cut(reason || "the connection was lost");
  }

  /** Learns why a handshake has failed: the same request over HTTP has the same answer. 426: the handshake would succeed now. */
  async #failed(url) {
    const { fetch = globalThis.fetch, unauthorized } = this.#options;
    this.#drop(4000);
    const request = new URL(url);
    request.protocol = request.protocol.replace("ws", "http");
    const secret = [valueOf(this.#protocols)].flat().find((one) => one.startsWith("outrigger.token."));
    const headers = secret ? { Authorization: `Bearer ${secret.slice("outrigger.token.".length)}` } : {};
    const waits = setTimeout(() => {}, 0);
    this.#timer = waits;
    let status = 0;
    let message = "";
    try {
      const response = await fetch(request, { headers, cache: "no-store", signal: AbortSignal.timeout(HANDSHAKE_TIMEOUT) });
      status = response.status;
      message = (await response.json())?.message ?? "";
    } catch { /* the server cannot be reached, or says no more */ }
    if (this.#timer !== waits || this.readyState > 1) return;
    if (status === 401 && unauthorized) {
      await unauthorized(message);
      if (this.#timer === waits && this.readyState <= 1) this.#connect();
      return;
    }
    if ([400, 401, 403, 404, 405, 409, 410].includes(status)) return this.#end(1006, message, false, status);
    this.#cut(message || "the server does not answer");
  }

  /** Lets the connection go in a way that the server takes for a cut, and comes back later. */
  #cut(reason) {
    const isOpen = this.connected;
    this.#drop(4000);
    // Without a resume token, nobody knows what the server has received.
    const isFresh = this.#token === "new";
    if (isFresh && (isOpen || this.readyState === 1) && (this.received || this.#next)) return this.#end(1006, reason);
    const { minDelay, maxDelay } = this.#options;
    const longest = this.#attempts ? Math.min(minDelay * 2 ** (this.#attempts - 1), maxDelay) : 0;
    const delay = longest * (0.5 + 0.5 * Math.random());
    this.#attempts++;
    this.#timer = setTimeout(() => this.#connect(), delay);
    this.#dispatch(event("cut", { reason, retryAt: Date.now() + delay }));
  }

  /** Forgets the current connection. */
  #drop(code) {
    for (const timer of [this.#timer, this.#steadyTimer, this.#pumpTimer]) clearTimeout(timer);
    this.#timer = undefined;
    this.connected = false;
    const socket = this.#socket;
    if (!socket) return;
    this.#socket = undefined;
    socket.onopen = socket.onmessage = socket.onclose = null;
    // A library may report that a handshake was given up.
    socket.onerror = () => {};
    socket.close(code);
  }

  #end(code, reason, wasClean = false, status = 0) {
    this.#drop(1000);
    clearInterval(this.#ticker);
    this.#unlisten();
    this.readyState = 3;
    if (!wasClean) this.#dispatch(event("error", { message: reason }));
    this.#dispatch(event("close", { code, reason, wasClean, status }));
  }
}
