// A WebSocket that survives cuts: every message arrives exactly once and in order, in both directions.
// See docs/surviving-disconnects.md for the protocol. It is used like a WebSocket, and has a few events and methods more.

/** A connection that has lived this long is steady: after its cut, the first attempt follows at once. */
const STEADY = 5000;
const HANDSHAKE_TIMEOUT = 15_000;
/** With this many unconfirmed bytes, the socket asks what the server has received. */
const CONFIRM = 256 * 1024;
/** How long an answer may take after the page was away, and at most, in milliseconds. */
const SHORT_PATIENCE = 2000;
const LONG_PATIENCE = 60_000;
/** After a cut of a connection that has carried this many bytes, the socket comes back soon. */
const USEFUL = 1024;
/** A timer that is this late shows that the computer has slept. */
const SLEPT = 20_000;
/** The closing codes of a connection that was cut, or whose server stops and may start again. */
const CUTS = [1001, 1005, 1006, 1012, 1013, 1015];

const sizeOf = (data) => data.size ?? data.byteLength ?? data.length;
const valueOf = (value, ...args) => (typeof value === "function" ? value(...args) : value);
/** A view of memory that its owner may change, as a copy. */
const copyOf = (data) =>
  typeof data === "string" || !(data instanceof ArrayBuffer || ArrayBuffer.isView(data))
    ? data
    : new Uint8Array(ArrayBuffer.isView(data) ? data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength) : data.slice(0));

const encode = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** The token and the number in a notice, or undefined if a message is not one. Applications may send messages that look alike. */
function noticeIn(data) {
  if (typeof data !== "string" || !data.startsWith('{"outrigger":{"resume":')) return undefined;
  try {
    const { resume, received } = JSON.parse(data).outrigger;
    return typeof resume === "string" && Number.isSafeInteger(received) ? { resume, received } : undefined;
  } catch {
    return undefined;
  }
}

/** An event with fields. Node 20 has no CloseEvent. */
const event = (type, fields) => Object.assign(new Event(type), fields);

/**
 * @typedef {object} Options
 * @property {number} [minDelay] the longest delay before the second attempt to come back, in milliseconds: 200
 * @property {number} [maxDelay] the longest delay between later attempts: 10,000
 * @property {number} [deadAfter] while the page is visible, this long without a message makes the socket ask whether the connection
 *   lives. Without an answer, it counts as cut before twice the time has passed: 5,000. 0: it does not ask
 * @property {boolean} [early] whether `send` before the first connection keeps the message instead of throwing
 * @property {typeof WebSocket} [WebSocket] another class of WebSockets
 * @property {typeof fetch} [fetch] another function to learn why a handshake has failed
 * @property {(message: string) => Promise<unknown>} [unauthorized] is called after the status 401; the socket tries again after it
 * @property {(end: {code: number, reason: string, status: number}) => boolean} [renew] is called when the conversation has ended
 *   without a CLOSE of this side. If it returns true, a new one begins on this socket, with the event `open`: what was sent is not sent
 *   again, and `sent` and `received` begin at 0
 * @property {boolean} [resume] false: the socket does not ask to resume, so `renew` decides after each cut
 * @property {object} [state] what `suspend` has returned: the socket continues that conversation
 */

/**
 * Events beside those of a WebSocket: `cut` with `{code, reason, retryAt}` when the connection is lost or an attempt has failed, and
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
  /** @type {BinaryType} */
  #binaryType = "blob";
  #url;
  #protocols;
  #options;
  #socket;
  #token = "new";
  #kept = [];
  #keptBytes = 0;
  #next = 0;
  #confirmed = 0;
  #attempts = 0;
  #timer;
  #steadyTimer;
  #ticker;
  #heard = 0;
  #pumpTimer;
  #confirmAfter = 0;
  #refresh = 1000;
  #unlisten = () => {};
  #heartbeat = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  #beats = false;
  #carried = 0;
  #asked = 0;
  #patience = 0;
  #tick = Date.now();

  /**
   * @param {string | URL | ((resumes: boolean) => string | URL)} url the address, or a function that is called for each connection
   * @param {string | string[] | (() => string | string[])} [protocols] the subprotocols, or such a function
   * @param {Options} [options]
   */
  constructor(url, protocols = [], options = {}) {
    super();
    this.#url = url;
    this.#protocols = protocols;
    this.#options = { minDelay: 200, maxDelay: 10_000, deadAfter: 5000, ...options };
    this.#address();
    this.#patience = 0.7 * this.#options.deadAfter;
    if (options.state) this.#restore(options.state);
    this.#listen();
    this.#connect();
  }

  get binaryType() {
    return this.#binaryType;
  }
  set binaryType(type) {
    this.#binaryType = type;
    if (this.#socket) this.#socket.binaryType = type;
  }

  get url() {
    return this.#address().href;
  }
  /** The bytes that the server may not have received. */
  get bufferedAmount() {
    return this.#keptBytes;
  }
  /** Whether all messages have left the browser. */
  get flushed() {
    return this.#next === this.#kept.length && !this.#socket?.bufferedAmount;
  }
  /** The messages that the server may not have received, in order. */
  get unconfirmed() {
    return [...this.#kept];
  }

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

  /** Tries to come back at once. If the socket seems to be connected, asks whether that is true. */
  retry() {
    if (this.#timer && !this.#socket) this.#connect();
    else this.#ask(SHORT_PATIENCE);
  }

  /**
   * For a page that is closed or reloaded: returns what the option `state` needs to continue, as an object for JSON, or undefined if
   * nothing can continue. The socket does not come back by itself then.
   */
  suspend() {
    const kept = [];
    if (this.readyState !== 1 || !this.resumable || this.#kept.some((message) => message.size !== undefined)) return undefined;
    for (const message of this.#kept) kept.push(typeof message === "string" ? message : { bytes: encode(message) });
    const state = { token: this.#token, received: this.received, sent: this.sent, confirmed: this.#confirmed, kept };
    this.readyState = 3;
    clearInterval(this.#ticker);
    this.#unlisten();
    // The browser closes the connection, which the server takes for a cut.
    const socket = this.#socket;
    if (socket) socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
    return state;
  }

  #restore({ token, received, sent, confirmed, kept }) {
    this.#token = token;
    Object.assign(this, { received, sent, resumable: true, readyState: 1 });
    this.#confirmed = confirmed;
    this.#kept = kept.map((message) => (message.bytes === undefined ? message : decode(message.bytes)));
    this.#keptBytes = this.#kept.reduce((sum, message) => sum + sizeOf(message), 0);
    this.#next = kept.length;
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
    const url = new URL(valueOf(this.#url, this.#token !== "new"), globalThis.location?.href);
    url.protocol = url.protocol.replace(/^http/, "ws");
    url.hash = "";
    return url;
  }

  #dispatch(one) {
    this[`on${one.type}`]?.(one);
    this.dispatchEvent(one);
  }

  /** Follows what a browser tells about the network, and asks now and then whether the connection lives. */
  #listen() {
    const page = globalThis.document;
    if (this.#options.deadAfter) {
      this.#ticker = setInterval(() => this.#check(), 1000);
      this.#ticker.unref?.();
    }
    if (!page) return;
    const wake = () => page.visibilityState === "visible" && this.retry();
    const lose = () => this.#socket && this.#continues("the browser is offline") && this.#cut("the browser is offline");
    /** @type {[EventTarget, string, () => unknown][]} */
    const all = [
      [globalThis, "online", wake],
      [globalThis, "pageshow", wake],
      [page, "visibilitychange", wake],
      [globalThis, "offline", lose],
    ];
    for (const [target, type, listener] of all) target.addEventListener(type, listener);
    this.#unlisten = () => {
      for (const [target, type, listener] of all) target.removeEventListener(type, listener);
    };
  }

  #check() {
    const now = Date.now();
    const slept = now - this.#tick > SLEPT;
    this.#tick = now;
    if ((globalThis.document?.visibilityState ?? "visible") !== "visible") return;
    if (slept) this.#ask(SHORT_PATIENCE);
    else if (now >= this.#heard + this.#options.deadAfter) this.#ask(this.#patience);
  }

  /** Whether a cut would lose nothing that another connection cannot bring back. */
  #continues(reason) {
    return this.resumable || this.#options.renew?.({ code: 1006, reason, status: 0 }) === true;
  }

  /** A browser notices a dead network late, and a page does not see PINGs. So the socket asks, and the answer is no message. */
  #ask(patience) {
    if (!this.connected || !this.#beats || !this.#options.deadAfter || this.#asked) return;
    const socket = this.#socket;
    const asked = (this.#asked = Date.now());
    let queued = Infinity;
    socket.send(`{"outrigger":{"heartbeat":"${this.#heartbeat}"}}`);
    const judge = () => {
      if (this.#asked !== asked || this.#socket !== socket) return;
      // What is sent before is still on its way, or the program does not read it, so the question has not arrived yet.
      const progress = socket.bufferedAmount < queued && socket.bufferedAmount > 0;
      queued = socket.bufferedAmount;
      const waits = queued > 0 || !this.#continues("");
      if (progress || (waits && Date.now() < asked + LONG_PATIENCE)) return void setTimeout(judge, patience);
      // A server does not answer while a program does not read. Then the next question may take longer.
      this.#patience = Math.min(2 * this.#patience, LONG_PATIENCE);
      this.#cut("the server does not answer");
    };
    setTimeout(judge, patience);
  }

  /** The connection lives, and the server has received this many messages. */
  #answered(received) {
    if (this.#asked) this.#patience = 0.7 * this.#options.deadAfter;
    this.#asked = 0;
    this.#beats = true;
    this.confirm(received);
    this.#pump();
  }

  #connect() {
    this.#drop(4000);
    const isNew = this.#token === "new";
    const url = this.#address();
    const answer = `{"outrigger":{"heartbeat":"${this.#heartbeat}","received":`;
    if (this.#options.resume !== false) {
      url.searchParams.set("resume", this.#token);
      url.searchParams.set("notice", "1");
    }
    if (this.#options.deadAfter) url.searchParams.set("heartbeat", this.#heartbeat);
    if (!isNew) url.searchParams.set("received", String(this.received));
    let socket;
    try {
      socket = new (this.#options.WebSocket ?? globalThis.WebSocket)(url, valueOf(this.#protocols));
    } catch (error) {
      if (!this.sent && !this.#attempts && isNew) throw error;
      return this.#end(1006, error.message);
    }
    this.#socket = socket;
    socket.binaryType = this.#binaryType;
    this.#timer = setTimeout(() => this.#cut("the handshake takes too long"), HANDSHAKE_TIMEOUT);
    socket.onopen = () => isNew && this.#opened(socket);
    let first = true;
    socket.onmessage = ({ data }) => {
      this.#heard = Date.now();
      const notice = first ? noticeIn(data) : undefined;
      const wasFirst = first;
      first = false;
      if (notice) return this.#noticed(socket, notice);
      if (wasFirst && !isNew) return this.#lost(1006, "the server has not resumed the conversation");
      if (typeof data === "string" && data.startsWith(answer)) return this.#answered(Number.parseInt(data.slice(answer.length), 10));
      this.received++;
      this.#carried += sizeOf(data);
      if (this.#carried >= USEFUL) this.#attempts = Math.min(this.#attempts, 1);
      this.#asked &&= 0;
      if (!this.resumable && !this.#beats) this.confirm(this.sent);
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
    this.#asked = this.#carried = 0;
    this.#heard = Date.now();
    this.protocol = socket.protocol;
    this.extensions = socket.extensions;
    this.#steadyTimer = setTimeout(() => {
      this.#attempts = 0;
    }, STEADY);
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
    if (this.#keptBytes < CONFIRM) return;
    if (this.#beats) return this.#ask(LONG_PATIENCE);
    if (!this.resumable) return;
    if (this.#socket.bufferedAmount || Date.now() < this.#confirmAfter) {
      this.#pumpTimer = setTimeout(() => this.#pump(), 100);
      return;
    }
    this.#confirmAfter = Date.now() + this.#refresh;
    this.#refresh = Math.min(2 * this.#refresh, this.#options.maxDelay);
    this.#connect();
  }

  #closed(code, reason) {
    if (this.readyState === 2) return this.#end(code, reason, true);
    if (!CUTS.includes(code)) return this.#lost(code, reason, true);
    this.#cut(reason || "the connection was lost", code);
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
    } catch {
      /* the server cannot be reached, or says no more */
    }
    if (this.#timer !== waits || this.readyState > 1) return;
    if (status === 401 && unauthorized) {
      await unauthorized(message);
      if (this.#timer === waits && this.readyState <= 1) this.#connect();
      return;
    }
    if ([400, 401, 403, 404, 405, 409, 410].includes(status)) return this.#lost(1006, message, false, status);
    this.#cut(message || "the server does not answer");
  }

  /** Lets the connection go in a way that the server takes for a cut, and comes back later. */
  #cut(reason, code = 1006) {
    const isOpen = this.connected;
    this.#drop(4000);
    // Without a resume token, nobody knows what the server has received.
    const isFresh = this.#token === "new";
    if (isFresh && (isOpen || this.readyState === 1) && (this.received || this.#next)) return this.#lost(code, reason);
    this.#comeBack(reason, code);
  }

  #comeBack(reason, code = 1006) {
    const { minDelay, maxDelay } = this.#options;
    const longest = this.#attempts ? Math.min(minDelay * 2 ** (this.#attempts - 1), maxDelay) : 0;
    const delay = longest * (0.5 + 0.5 * Math.random());
    this.#attempts++;
    this.#timer = setTimeout(() => this.#connect(), delay);
    this.#dispatch(event("cut", { code, reason, retryAt: Date.now() + delay }));
  }

  /** The conversation cannot continue, but another one may begin. */
  #lost(code, reason, wasClean = false, status = 0) {
    const fresh = this.#token === "new";
    if (this.#options.renew?.({ code, reason, status }) !== true) return this.#end(code, reason, wasClean, status);
    this.#drop(1000);
    // What was never given to a connection of the old conversation is sent in the new one.
    this.#kept = this.#kept.slice(this.#next);
    this.#token = "new";
    this.resumable = this.#beats = false;
    this.#next = this.#confirmed = this.received = 0;
    this.sent = this.#kept.length;
    this.#keptBytes = this.#kept.reduce((sum, message) => sum + sizeOf(message), 0);
    this.readyState = 0;
    if (fresh || status === 0) this.#comeBack(reason, code);
    else this.#connect();
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
