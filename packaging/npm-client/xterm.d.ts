import type { ITerminalAddon, Terminal } from "@xterm/xterm";

/** Options of an {@link OutriggerAddon}. */
export interface AddonOptions {
  /** The subprotocols of the WebSocket, which may contain the token: `["outrigger", "outrigger.token.SECRET"]`. */
  protocols?: string[] | (() => string[]);
  /** Whether to watch only. */
  viewer?: boolean;
  /** The byte of a process's output from which to continue. */
  since?: number;
  /** `false`: what the user types is not sent by itself. Call `send`. */
  input?: boolean;
  /** Shows output, in place of `terminal.write`. */
  write?: (data: Uint8Array) => void;
  /** Shows the size of the writer's terminal to a viewer, in place of `terminal.resize`. */
  size?: (size: { rows: number; cols: number }) => void;
  /** Is called after the status 401. The addon tries again after the promise. */
  unauthorized?: (message: string) => Promise<unknown>;
  /** Another class of WebSockets. */
  WebSocket?: unknown;
}

/** The state of the connection. */
export interface State {
  /**
   * `connecting`: the first attempt. `open`: messages flow. `lost`: the connection was cut, and the addon comes back. `refused`: another
   * client is the writer. `taken`: another connection has replaced this one. `gone`: the server does not have the conversation any more.
   * `ended`: the server has closed the connection with `code` and `message`.
   */
  readonly name: "connecting" | "open" | "lost" | "refused" | "taken" | "gone" | "ended";
  /** In `open`: the first messages are output from before this connection. */
  readonly behind?: boolean;
  /** In `lost`: when the connection was cut, and the time of the next attempt, as `Date.now()` has them. */
  readonly since?: number;
  readonly next?: number;
  readonly message?: string;
  readonly code?: number;
  /** In `open` and `lost`: the connections in a row that were cut early. */
  readonly cuts?: number;
}

export interface OutriggerAddonEventMap {
  state: CustomEvent<State>;
  /** The end of the program. */
  exit: CustomEvent<{ type: "exit"; exitCode: number | null; signal?: string }>;
  role: CustomEvent<{ type: "role"; role: "writer" | "viewer" }>;
  /** The size of the writer's terminal. */
  size: CustomEvent<{ type: "size"; rows: number; cols: number }>;
  clients: CustomEvent<{ type: "clients"; writer: string | null; viewers: number }>;
  /** Bytes of earlier output that are no longer kept. */
  gap: CustomEvent<{ type: "gap"; from: number; to: number }>;
  error: CustomEvent<{ type: "error"; message: string }>;
  /** Each event of the server. */
  event: CustomEvent<{ type: string }>;
}

/** Connects a terminal of the page to a terminal or process of an Outrigger server, and survives cuts. */
export class OutriggerAddon extends EventTarget implements ITerminalAddon {
  /** @param url the address of a terminal, or `/process/ID/attach`, or `/process/by-name/NAME` */
  constructor(url: string | URL, options?: AddonOptions);
  readonly state: State;
  /** The number of bytes of a process's output so far. Pass it as `since` to continue there. */
  readonly offset: number;
  readonly viewer: boolean;
  /** Whether the connection has not ended. */
  readonly live: boolean;
  /** Whether the conversation can continue after a reload of the page. */
  readonly canContinue: boolean;
  activate(terminal: Terminal): void;
  /** Ends the connection. The server ends the program of a terminal, and a process runs on. */
  dispose(): void;
  /** Sends input. Returns `false` if too much input is unconfirmed; then nothing of it is sent. */
  send(bytes: Uint8Array): boolean;
  /** Begins a new conversation. */
  restart(options?: { viewer?: boolean; takeover?: boolean; fromStart?: boolean }): void;
  /** The token may only watch. */
  watchOnly(): void;
  /** Tries at once to come back. */
  retry(): void;
  /** For a page that is closed or reloaded: returns what `restore` needs, as an object for JSON. */
  suspend(): object | undefined;
  /** Continues what `suspend` has returned. Call it before `loadAddon`. */
  restore(state: object): void;

  addEventListener<K extends keyof OutriggerAddonEventMap>(
    type: K,
    listener: (event: OutriggerAddonEventMap[K]) => unknown,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}

/** Whether a path is that of a process. Any other is one of a terminal, where each client has a program of its own. */
export function isProcessPath(path: string): boolean;
