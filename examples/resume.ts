// A client for browsers and Node 22 that survives lost connections: every message arrives once and in order, both ways.
// See docs/surviving-disconnects.md.
//
//     const connection = new Resuming("ws://127.0.0.1:7070/");
//     connection.onmessage = (data) => ...;
//     connection.onlost = (kept) => ...;       the client could not come back, and a new conversation begins
//     connection.onend = (code) => ...;
//     connection.send("hello");
//
// It tries to come back after delays of up to 10 s, so `--resume-grace` must be longer than that.
// It keeps the messages that the server may not have received. A page does not see PONGs, so confirm messages when the
// application gets answers: `connection.confirm(3)` says that the server has received the first three messages.

type Data = string | ArrayBuffer;

export class Resuming {
  onmessage = (_data: Data) => {};
  onlost = (_kept: Data[]) => {};
  onend = (_code: number) => {};
  #url: string; #socket!: WebSocket; #open = false; #away = false; #ended = false; #delay = 0;
  #token = "new"; #received = 0; #taken = 0; #kept: Data[] = [];

  constructor(url: string) { this.#url = url; this.#connect(); }
  send(data: Data) { this.#kept.push(data); if (this.#open) this.#socket.send(data); }
  confirm(taken: number) { this.#taken += this.#kept.splice(0, Math.max(0, taken - this.#taken)).length; }
  close() {
    if (this.#ended) return;
    this.#ended = true;
    if (this.#away) this.onend(1006); else this.#socket.close(1000);
  }

  #connect() {
    const url = new URL(this.#url);
    url.search += `${url.search ? "&" : "?"}resume=${this.#token}&received=${this.#received}&notice=1`;
    const socket = this.#socket = new WebSocket(url);
    this.#away = false;
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => {
      if (this.#open) { this.#received++; return this.onmessage(data); }
      const { resume, received } = JSON.parse(data).outrigger;
      this.#token = resume; this.#open = true; this.#delay = 0;
      this.confirm(received);
      for (const message of this.#kept) socket.send(message);
    };
    socket.onerror = socket.onclose = async (event: object) => { // Node 22 reports a failed handshake only with `error`
      socket.onerror = socket.onclose = null;
      const { code = 1006 } = event as { code?: number };
      const failed = !this.#open;
      this.#open = false;
      if (this.#ended || code === 1000 || code === 4001) return this.onend(code); // 4001: another connection has taken over
      this.#away = true;
      url.protocol = url.protocol.replace("ws", "http");
      if (failed && (await fetch(url).catch(() => undefined))?.status === 410) { // a WebSocket does not show it; 421 (another node) is tried again
        if (this.#ended) return;
        const kept = this.#kept;
        this.#token = "new"; this.#received = this.#taken = 0; this.#kept = [];
        this.onlost(kept);
      }
      setTimeout(() => this.#ended || this.#connect(), this.#delay * Math.random());
      this.#delay = Math.min(2 * this.#delay + 200, 10_000);
    };
  }
}
