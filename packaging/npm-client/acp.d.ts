import type { CutEvent, Options } from "./index.js";

/** A request of the agent. */
export interface AgentRequest {
  readonly method: string;
  readonly params: any;
  readonly id: string | number;
  /** Is aborted when the agent no longer needs the answer, or the connection has ended. */
  readonly signal: AbortSignal;
}

/** Options of an {@link AgentConnection}: its own, and those of the WebSocket. */
export interface AgentOptions extends Options {
  /** The subprotocols of the WebSocket, which may contain the token: `["outrigger", "outrigger.token.SECRET"]`. */
  protocols?: string | string[] | (() => string | string[]);
  /**
   * Answers a request of the agent: returns the result or a promise of it. `undefined` answers that the client does not have the method.
   * An error that is thrown becomes the error of the answer, with its `code`.
   */
  request?: (request: AgentRequest) => unknown;
}

export interface AgentConnectionEventMap {
  /** A notification of the agent, such as `session/update`. */
  notification: CustomEvent<{ method: string; params: any }>;
  open: CustomEvent;
  /** The connection was lost, or an attempt to come back has failed. */
  cut: CustomEvent<Pick<CutEvent, "code" | "reason" | "retryAt">>;
  resume: CustomEvent;
  /** The conversation has ended, and what was not answered has failed. */
  close: CustomEvent<{ code: number; reason: string; status: number }>;
}

/** The error of an agent or of the server. */
export class RequestError extends Error {
  constructor(error?: { code?: number; message?: string; data?: unknown });
  /** The code of JSON-RPC, or 0 if there is no answer. */
  code: number;
  data: unknown;
  /** The HTTP status of a handshake that has failed for good, or 0. */
  status: number;
  /** Whether the connection has ended before an answer. */
  isLost: boolean;
}

/** A connection to an agent of the Agent Client Protocol, or of any JSON-RPC 2.0, that survives cuts. */
export class AgentConnection extends EventTarget {
  constructor(url: string | URL | (() => string | URL), options?: AgentOptions);
  /** Whether messages flow now. */
  readonly connected: boolean;
  /** Sends `initialize` of version 1 of the protocol. */
  initialize(params?: object): Promise<any>;
  /** Sends a request. Resolves with its result, or rejects with a {@link RequestError}. You can call it before the connection is there. */
  request(method: string, params?: object): Promise<any>;
  notify(method: string, params?: object): void;
  /** Tries at once to come back. */
  retry(): void;
  /** Ends the conversation. */
  close(): void;

  addEventListener<K extends keyof AgentConnectionEventMap>(
    type: K,
    listener: (event: AgentConnectionEventMap[K]) => unknown,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}
