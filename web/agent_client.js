// A client of the Agent Client Protocol, version 1, over a resumable connection. It implements nothing for the agent but permission
// requests. Files and terminals are the server's, which announces them for this client if its settings permit it.

import { askForToken, pagePath, session, socketProtocols, socketUrl, token } from "./common.js";
import { ResumableWebSocket } from "./resumable.js";

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The error of an agent or of the server, with its `code`. */
export class RequestError extends Error {
  constructor({ code = 0, message = "the request has failed", data } = {}) {
    const detail = typeof data === "string" ? data : (data?.details ?? data?.message);
    super(detail && detail !== message ? `${message}: ${detail}` : String(message));
    this.code = code;
  }
}

/** Opens a connection to the agent of this page. `query` are parameters of the address. */
export function openSocket(query = {}) {
  const url = () => {
    const url = socketUrl(pagePath);
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    return url;
  };
  const unauthorized = () => askForToken(token() ? "The server does not accept the token of this page." : undefined);
  return new ResumableWebSocket(url, socketProtocols, { unauthorized });
}

/** A parsed message, or undefined if it is not one of JSON-RPC. */
export function parse(data) {
  try {
    const message = JSON.parse(data);
    return isObject(message) ? message : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Events: `notification` and `request` with `detail` {method, params, id}, `state` with {state, text}, and `close` when the
 * conversation with the server has ended; `detail.reason` says why.
 */
export class AgentClient extends EventTarget {
  #socket;
  #last = 0;
  #pending = new Map();
  /** The result of `initialize`. */
  agent;

  /** What the server adds to it: `maxMessage`, `directory`, and `clientTools`, which it has for the agent in the place of this page. */
  get about() {
    const about = this.agent?._meta?.outrigger;
    return isObject(about) ? about : {};
  }

  constructor() {
    super();
    this.#socket = openSocket();
    this.#socket.addEventListener("message", ({ data }) => this.#receive(data));
    this.#socket.addEventListener("cut", ({ reason, retryAt }) => this.#tell("state", { state: "gone", text: reason, retryAt }));
    for (const type of ["open", "resume"])
      this.#socket.addEventListener(type, () => this.#tell("state", { state: "live", text: "connected" }));
    this.#socket.addEventListener("close", ({ code, reason, status }) => {
      for (const { reject } of this.#pending.values()) reject(Object.assign(new RequestError({ message: reason || "the connection has ended" }), { isLost: true }));
      this.#pending.clear();
      this.#tell("close", { code, reason, status });
    });
  }

  /** Resolves once the agent has answered `initialize`. */
  async initialize() {
    await new Promise((resolve, reject) => {
      this.#socket.addEventListener("open", resolve, { once: true });
      this.#socket.addEventListener("close", ({ reason, status }) => reject(Object.assign(new RequestError({ message: reason }), { status })), {
        once: true,
      });
    });
    this.agent = await this.request("initialize", {
      protocolVersion: 1,
      clientCapabilities: { fs: { readTextFile: false, writeTextFile: false }, terminal: false },
      _meta: { outrigger: { clientTools: true } },
      clientInfo: { name: "outrigger-page", title: "Outrigger in a browser", version: (await session().catch(() => {}))?.version ?? "1" },
    });
    return this.agent;
  }

  /** Sends a request. Resolves with its result, or rejects with a RequestError. */
  request(method, params) {
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#send({ jsonrpc: "2.0", id, method, params });
      this.#pending.set(id, { resolve, reject, sent: this.#socket.sent });
    });
  }

  notify(method, params) {
    this.#send({ jsonrpc: "2.0", method, params });
  }

  answer(id, result) {
    this.#send({ jsonrpc: "2.0", id, result });
  }

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
    const message = parse(data);
    if (!message) return;
    const { id, method } = message;
    const params = isObject(message.params) ? message.params : {};
    if (method === undefined) {
      const pending = this.#pending.get(id);
      if (!pending) return;
      this.#pending.delete(id);
      // The server has handled everything before the request.
      this.#socket.confirm(pending.sent);
      if (message.error) pending.reject(new RequestError(message.error));
      else pending.resolve(isObject(message.result) ? message.result : {});
    } else if (id === undefined) {
      this.#tell("notification", { method, params });
    } else if (method === "session/request_permission") {
      this.#tell("request", { method, params, id });
    } else {
      this.#send({ jsonrpc: "2.0", id, error: { code: -32601, message: "Method not found" } });
    }
  }
}
