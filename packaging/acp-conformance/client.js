// A client of the Agent Client Protocol for tests: it answers what an agent asks, and keeps every message.
"use strict";

const { WebSocket } = require("./websocket.js");

/** What a case expected and did not see. */
class Unmet extends Error {}

/** A case that does not apply to this server. */
class Skipped extends Error {}

function expect(condition, message) {
  if (!condition) throw new Unmet(message);
}

function shown(message) {
  const text = JSON.stringify(message) ?? "nothing";
  return text.length > 200 ? `${text.slice(0, 200)}...` : text;
}

/** The parameters of `initialize` in a version of the protocol. */
function hello(version) {
  const info = { name: "acp-conformance", version: "1" };
  return version < 2
    ? { protocolVersion: version, clientCapabilities: {}, clientInfo: info }
    : { protocolVersion: version, capabilities: {}, info };
}

class Client {
  /** Connects. A client that comes back returns the cookies that the server has set on the `earlier` connection. */
  static async connect(settings, headers = {}, earlier = undefined) {
    const cookies = Object.entries(earlier?.cookies ?? {}).map(([name, value]) => `${name}=${value}`);
    const own = cookies.length > 0 ? { Cookie: cookies.join("; ") } : {};
    const options = { headers: { ...settings.headers, ...own, ...headers }, timeout: settings.timeout, insecure: settings.insecure };
    const socket = await WebSocket.connect(settings.url, options);
    return new Client(settings, socket, earlier?.cookies);
  }

  static async initialized(settings, params = {}, headers = {}, earlier = undefined) {
    const client = await Client.connect(settings, headers, earlier);
    await client.initialize(params);
    return client;
  }

  constructor(settings, socket, cookies = {}) {
    this.settings = settings;
    this.socket = socket;
    this.connectionId = socket.headers["acp-connection-id"];
    /** The cookies of the server, by name. */
    this.cookies = { ...cookies };
    for (const cookie of socket.headers["set-cookie"] ?? []) {
      const [, name, value] = /^\s*([^=;]+)=([^;]*)/.exec(cookie) ?? [];
      if (name) this.cookies[name] = value;
    }
    this.lastId = 0;
    /** Messages that were not what `until` waited for, oldest first. */
    this.others = [];
    /** The number of these when the last prompt was sent. */
    this.before = 0;
    settings.open.push(this);
  }

  async initialize(params = {}) {
    const answer = await this.call("initialize", { ...hello(params.protocolVersion ?? 1), ...params });
    expect(answer.result, `initialize was answered with ${shown(answer)}`);
    this.agent = answer.result;
    this.version = answer.result.protocolVersion;
    return answer.result;
  }

  send(message) {
    this.socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }

  notify(method, params) {
    this.send({ method, params });
  }

  request(method, params) {
    const id = ++this.lastId;
    this.send({ id, method, params });
    return id;
  }

  /** The next message. Requests of the agent are answered. `undefined` if none comes in time. */
  async next(timeout = this.settings.timeout) {
    const text = await this.socket.next(timeout);
    if (text === undefined) return undefined;
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      throw new Unmet(`a message is not JSON: ${text.slice(0, 200)}`);
    }
    if (message.method !== undefined && message.id !== undefined) this.answer(message);
    return message;
  }

  answer({ id, method, params }) {
    if (method === "session/request_permission") {
      const option = params?.options?.[0]?.optionId;
      const outcome = option === undefined ? { outcome: "cancelled" } : { outcome: "selected", optionId: option };
      this.send({ id, result: { outcome } });
    } else {
      this.send({ id, error: { code: -32601, message: "Method not found" } });
    }
  }

  /** The first message that matches. */
  async until(matches, what) {
    const until = Date.now() + this.settings.timeout;
    for (;;) {
      const message = await this.next(Math.max(until - Date.now(), 1));
      if (message === undefined) {
        const why = this.socket.closed ? `the connection ended with ${this.socket.closed.code}` : "it did not come in time";
        throw new Unmet(`${what}: ${why}`);
      }
      if (matches(message)) return message;
      this.others.push(message);
    }
  }

  response(id, what = `the response to request ${JSON.stringify(id)}`) {
    return this.until((message) => message.method === undefined && message.id === id, what);
  }

  call(method, params) {
    return this.response(this.request(method, params), `the response to ${method}`);
  }

  async session() {
    const answer = await this.call("session/new", { cwd: this.settings.cwd, mcpServers: [] });
    expect(typeof answer.result?.sessionId === "string", `session/new was answered with ${shown(answer)}`);
    return answer.result.sessionId;
  }

  prompt(sessionId, text = this.settings.prompt) {
    this.before = this.others.length;
    return this.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
  }

  /** Waits for the end of the turn that a prompt has begun. Returns the stop reason. */
  async turn(id, sessionId) {
    const answer = await this.response(id, "the response to session/prompt");
    expect(answer.result, `session/prompt was answered with ${shown(answer)}`);
    return this.version < 2 ? answer.result.stopReason : this.idle(sessionId);
  }

  /** Waits until a session of version 2 is idle. Returns the stop reason. */
  async idle(sessionId) {
    const isIdle = ({ params }) => params?.sessionId === sessionId && params.update?.sessionUpdate === "state_update" && params.update.state === "idle";
    const known = this.others.slice(this.before).find(isIdle);
    const idle = known ?? (await this.until(isIdle, "the state_update that ends the turn"));
    return idle.params.update.stopReason;
  }

  /** Whether the connection still answers. */
  async isAlive() {
    const answer = await this.call("_conformance/none", {}).catch(() => undefined);
    return answer !== undefined;
  }
}

module.exports = { Client, Skipped, Unmet, expect, hello, shown };
