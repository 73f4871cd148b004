// A connection of a client to an agent of the Agent Client Protocol, or of any JSON-RPC 2.0, over a WebSocket that survives cuts.

import { ResumableWebSocket } from "./resumable.js";

/** JSON-RPC 2.0, section 5.1. */
const METHOD_NOT_FOUND = { code: -32601, message: "Method not found" };
const INTERNAL_ERROR = -32603;

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The error of an agent or of the server, with its `code`. */
export class RequestError extends Error {
  /** The code of JSON-RPC, or 0 if there is no answer, because the connection has ended. */
  code;
  data;
  /** The HTTP status of a handshake that has failed for good, or 0. */
  status = 0;
  /** Whether the connection has ended before an answer. */
  isLost = false;

  /** @param {{code?: number, message?: string, data?: any}} error the error of JSON-RPC */
  constructor({ code = 0, message = "the request has failed", data } = {}) {
    const detail = typeof data === "string" ? data : (data?.details ?? data?.message);
    super(detail && detail !== message ? `${message}: ${detail}` : String(message));
    this.code = code;
    this.data = data;
  }
}

/**
 * @typedef {object} AgentRequest a request of the agent
 * @property {string} method
 * @property {any} params
 * @property {string | number} id
 * @property {AbortSignal} signal is aborted when the agent no longer needs the answer
 */

/**
 * @typedef {object} OwnOptions
 * @property {string | string[] | (() => string | string[])} [protocols] the subprotocols of the WebSocket, which may contain the token
 * @property {(request: AgentRequest) => unknown} [request] answers a request of the agent: returns the result, or a promise of it, or
 *   undefined for a method that the client does not have
 * @typedef {OwnOptions & import("./resumable.js").Options} AgentOptions the others are those of the WebSocket
 */

/**
 * Events: `notification` with `detail` {method, params}; `open`, `cut` and `resume` as those of the WebSocket; `close` with
 * `detail` {code, reason, status} when the conversation with the server has ended.
 */
export class AgentConnection extends EventTarget {
  #socket;
  #options;
  #last = 0;
  /** The requests without an answer, by their ids. */
  #pending = new Map();
  /** The requests of the agent without an answer, by their ids. */
  #asked = new Map();

  /**
   * @param {string | URL | (() => string | URL)} url the address of the agent, or a function that is called for each connection
   * @param {AgentOptions} [options]
   */
  constructor(url, options = {}) {
    super();
    const { protocols, request: _, ...others } = options;
    this.#options = options;
    this.#socket = new ResumableWebSocket(url, protocols, { early: true, ...others });
    this.#socket.binaryType = "arraybuffer";
    this.#socket.addEventListener("message", ({ data }) => this.#receive(data));
    this.#socket.addEventListener("cut", ({ code, reason, retryAt }) => this.#tell("cut", { code, reason, retryAt }));
    for (const type of ["open", "resume"]) this.#socket.addEventListener(type, () => this.#tell(type));
    this.#socket.addEventListener("close", ({ code, reason, status }) => {
      const lost = () => Object.assign(new RequestError({ message: reason || "the connection has ended" }), { isLost: true, status });
      for (const { reject } of this.#pending.values()) reject(lost());
      this.#pending.clear();
      for (const aborter of this.#asked.values()) aborter.abort();
      this.#asked.clear();
      this.#tell("close", { code, reason, status });
    });
  }

  /** Whether messages flow now. */
  get connected() {
    return this.#socket.connected;
  }

  /** Sends `initialize` of version 1 of the protocol. Resolves with its result. */
  initialize(params = {}) {
    return this.request("initialize", { protocolVersion: 1, clientCapabilities: {}, ...params });
  }

  /** Sends a request. Resolves with its result, or rejects with a RequestError. */
  request(method, params = {}) {
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      if (this.#socket.readyState > 1) return reject(Object.assign(new RequestError({ message: "the connection has ended" }), { isLost: true }));
      this.#send({ jsonrpc: "2.0", id, method, params });
      return this.#pending.set(id, { resolve, reject, sent: this.#socket.sent });
    });
  }

  notify(method, params = {}) {
    if (this.#socket.readyState <= 1) this.#send({ jsonrpc: "2.0", method, params });
  }

  /** Tries at once to come back. */
  retry() {
    this.#socket.retry();
  }

  /** Ends the conversation. */
  close() {
    this.#socket.close();
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  #receive(data) {
    let message;
    try {
      message = JSON.parse(typeof data === "string" ? data : new TextDecoder().decode(data));
    } catch {
      return;
    }
    // Version 2 of the protocol may send several messages at once.
    for (const one of [message].flat()) if (isObject(one)) this.#handle(one);
  }

  #handle({ id, method, params, result, error }) {
    if (method === undefined) {
      const pending = this.#pending.get(id);
      if (!pending) return;
      this.#pending.delete(id);
      // The server has handled everything before the request.
      this.#socket.confirm(pending.sent);
      if (error) pending.reject(new RequestError(error));
      else pending.resolve(result ?? {});
    } else if (id !== undefined) this.#answer({ method, params: params ?? {}, id });
    else {
      if (method === "$/cancel_request") {
        this.#asked.get(params?.requestId)?.abort();
        this.#asked.delete(params?.requestId);
      }
      this.#tell("notification", { method, params: params ?? {} });
    }
  }

  /** Answers a request of the agent. */
  async #answer(request) {
    const { id } = request;
    const aborter = new AbortController();
    this.#asked.set(id, aborter);
    let answer;
    try {
      const result = await this.#options.request?.({ ...request, signal: aborter.signal });
      answer = result === undefined ? { error: METHOD_NOT_FOUND } : { result };
    } catch (error) {
      answer = { error: { code: error.code || INTERNAL_ERROR, message: String(error.message ?? error) } };
    }
    // Nobody waits for it after it was cancelled.
    if (this.#asked.get(id) !== aborter) return;
    this.#asked.delete(id);
    this.#send({ jsonrpc: "2.0", id, ...answer });
  }
}
