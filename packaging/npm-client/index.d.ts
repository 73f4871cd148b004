/** Options of a {@link ResumableWebSocket}. */
export interface Options {
  /** The longest delay before the second attempt to come back, in milliseconds. The default is 200. */
  minDelay?: number;
  /** The longest delay between later attempts, in milliseconds. The default is 10,000; the server's `--resume-grace` must be longer. */
  maxDelay?: number;
  /** While the page is visible, this long without a message makes the socket ask whether the connection lives. The default is 5,000; 0: it does not ask. */
  deadAfter?: number;
  /** Whether `send` before the first connection keeps the message instead of throwing. */
  early?: boolean;
  /** Another class of WebSockets, such as that of the package `ws`. */
  WebSocket?: unknown;
  /** Another function to learn why a handshake has failed. */
  fetch?: typeof fetch;
  /** Is called after the status 401. The socket tries again after the promise. */
  unauthorized?: (message: string) => Promise<unknown>;
  /**
   * Is called when the conversation has ended without a CLOSE of this side. If it returns `true`, a new one begins on this socket, with
   * the event `open`: what was sent is not sent again, and `sent` and `received` begin at 0.
   */
  renew?: (end: { code: number; reason: string; status: number }) => boolean;
  /** `false`: the socket does not ask to resume, so `renew` decides after each cut. */
  resume?: boolean;
  /** What {@link ResumableWebSocket.suspend} has returned: the socket continues that conversation, with the event `resume`. */
  state?: object;
}

/** The connection was lost, or an attempt to come back has failed. */
export interface CutEvent extends Event {
  /** The code of the CLOSE frame, or 1006. */
  readonly code: number;
  readonly reason: string;
  /** The time of the next attempt, as `Date.now()` has it. */
  readonly retryAt: number;
}

/** The conversation has ended. */
export interface EndEvent extends Event {
  readonly code: number;
  readonly reason: string;
  readonly wasClean: boolean;
  /** The HTTP status of the handshake that has failed for good, such as 410, or 0. */
  readonly status: number;
}

export interface ResumableWebSocketEventMap {
  open: Event;
  message: MessageEvent;
  error: Event;
  close: EndEvent;
  cut: CutEvent;
  resume: Event;
}

/** A WebSocket that survives cuts: every message arrives exactly once and in order, in both directions. */
export class ResumableWebSocket extends EventTarget {
  static readonly CONNECTING: 0;
  static readonly OPEN: 1;
  static readonly CLOSING: 2;
  static readonly CLOSED: 3;
  readonly CONNECTING: 0;
  readonly OPEN: 1;
  readonly CLOSING: 2;
  readonly CLOSED: 3;

  constructor(
    url: string | URL | ((resumes: boolean) => string | URL),
    protocols?: string | string[] | (() => string | string[]),
    options?: Options,
  );

  binaryType: "blob" | "arraybuffer";
  /** Stays `OPEN` while the socket comes back after a cut. */
  readonly readyState: number;
  readonly url: string;
  readonly protocol: string;
  readonly extensions: string;
  /** The bytes that the server may not have received. */
  readonly bufferedAmount: number;
  /** Whether messages flow now. */
  readonly connected: boolean;
  /** Whether the server offers to resume. If it does not, the first cut ends the conversation. */
  readonly resumable: boolean;
  /** The number of messages that were given to `send`. */
  readonly sent: number;
  /** The number of messages that have arrived. */
  readonly received: number;
  /** Whether all messages have left the browser. */
  readonly flushed: boolean;
  /** The messages that the server may not have received, in order. */
  readonly unconfirmed: (string | ArrayBufferLike | ArrayBufferView | Blob)[];

  onopen: ((event: Event) => unknown) | null;
  onmessage: ((event: MessageEvent) => unknown) | null;
  onerror: ((event: Event) => unknown) | null;
  onclose: ((event: EndEvent) => unknown) | null;
  oncut: ((event: CutEvent) => unknown) | null;
  onresume: ((event: Event) => unknown) | null;

  send(data: string | ArrayBufferLike | ArrayBufferView | Blob): void;
  /** Says that the server has received the first `count` messages, so that the socket need not keep them. */
  confirm(count: number): void;
  /** Tries to come back at once. If the socket seems to be connected, asks whether that is true. */
  retry(): void;
  /** For a page that is closed or reloaded: returns what the option `state` needs to continue, as an object for JSON. */
  suspend(): object | undefined;
  /** Ends the conversation. */
  close(code?: number, reason?: string): void;

  addEventListener<K extends keyof ResumableWebSocketEventMap>(
    type: K,
    listener: (event: ResumableWebSocketEventMap[K]) => unknown,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}
