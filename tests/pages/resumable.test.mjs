// web/resumable.js under simulated time, with a WebSocket that does what the test says.
import assert from "node:assert/strict";
import { mock, test } from "node:test";

/** The sockets that were opened, the last one last. */
const sockets = [];

class FakeSocket {
  readyState = 0;
  bufferedAmount = 0;
  protocol = "";
  extensions = "";
  sent = [];
  constructor(url) {
    this.url = new URL(url);
    sockets.push(this);
  }
  send(data) {
    this.sent.push(data);
  }
  close() {
    this.readyState = 3;
  }
  open() {
    this.readyState = 1;
    this.onopen?.({});
  }
  receive(data) {
    this.onmessage?.({ data });
  }
  /** The server says how many messages it has received: at first by itself, and then as an answer to each question. */
  answer(received) {
    const heartbeat = this.url.searchParams.get("heartbeat");
    this.receive(`{"outrigger":{"heartbeat":"${heartbeat}","received":${received}}}`);
  }
}

mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"] });
const { ResumableWebSocket } = await import("../../web/resumable.js");

/** A connection that the server can resume, and that has answered a question. */
function connect() {
  const socket = new ResumableWebSocket("ws://server.test/", [], { WebSocket: FakeSocket });
  const near = sockets.at(-1);
  near.open();
  near.receive('{"outrigger":{"resume":"a-token","received":0}}');
  near.answer(0);
  return { socket, near };
}

/** Lets time pass in small steps, and returns after how many milliseconds something has happened. */
function passes(happened, most = 60_000) {
  for (let time = 0; time <= most; time += 100) {
    if (happened()) return time;
    mock.timers.tick(100);
  }
  return Infinity;
}

test("a connection that dies without a sign counts as cut within ten seconds after the last message", () => {
  const { socket, near } = connect();
  const asks = () => near.sent.filter((text) => text.includes("heartbeat")).length;
  assert.ok(passes(() => asks() === 1) < 6500, "the socket asks after five seconds of silence");
  near.answer(0);
  near.receive("the last message");
  const cuts = [];
  socket.addEventListener("cut", ({ reason }) => cuts.push(reason));
  assert.ok(passes(() => cuts.length > 0) <= 10_000);
  assert.deepEqual(cuts.slice(0, 1), ["the server does not answer"]);
  socket.close();
});

test("a silent connection whose server answers is not cut", () => {
  const { socket, near } = connect();
  const cuts = [];
  socket.addEventListener("cut", ({ reason }) => cuts.push(reason));
  let answered = 0;
  passes(() => {
    const asked = near.sent.filter((text) => text.includes("heartbeat")).length;
    if (asked > answered) {
      answered = asked;
      near.answer(0);
    }
    return false;
  });
  assert.ok(answered >= 8, `${answered} questions in a minute`);
  assert.deepEqual(cuts, []);
  socket.close();
});
