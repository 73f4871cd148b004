// The cases: what each needs of the specification, and how it is tried. `level` is MUST if clients break without it, SHOULD if the text
// recommends it or only says it in passing, and MAY for an option that is checked where it is offered.
"use strict";

const { Client, Skipped, expect, shown } = require("./client.js");
const { Refused, request } = require("./websocket.js");

const TRANSPORT = "Streamable HTTP & WebSocket Transport";
const RESUME = "Durable & Resumable HTTP/WS Transport (#2208)";
const BATCHES = "v2 Transports, JSON-RPC Batch Messages";

const cases = [];
const add = (group, name, level, text, run) => cases.push({ group, name, level, text, run });

const isError = (message, code) => message?.error !== undefined && (code === undefined || message.error.code === code);

/** The cursor of a message. */
function cursorOf(message) {
  const metas = [message.params?._meta, message.result?._meta, message._meta];
  return metas.map((meta) => meta?.["acp/cursor"]).find((cursor) => cursor !== undefined);
}

/** Skips a case of turns if there is no prompt to try. */
function needPrompt(settings) {
  if (settings.prompt === "") throw new Skipped("there is no --prompt");
}

// Handshake.

add("handshake", "101 has Acp-Connection-Id", "MUST", TRANSPORT, async (settings) => {
  const [one, other] = [await Client.connect(settings), await Client.connect(settings)];
  expect(one.connectionId, "the 101 response has no Acp-Connection-Id");
  expect(one.connectionId !== other.connectionId, "two connections have the same id");
});
add("handshake", "a GET without an upgrade is no 101 and no 5xx", "SHOULD", TRANSPORT, async (settings) => {
  const { response } = await request(settings.url, { ...settings, headers: { ...settings.headers, Accept: "text/event-stream" } });
  expect(response.statusCode >= 400 && response.statusCode < 500, `the status is ${response.statusCode}`);
});
add("handshake", "a wrong Sec-WebSocket-Version gets 400 or 426", "SHOULD", "RFC 6455 section 4.4", async (settings) => {
  const refused = await Client.connect(settings, { "Sec-WebSocket-Version": "99" }).catch((error) => error);
  expect(refused instanceof Refused, "the handshake was accepted");
  expect([400, 426].includes(refused.status), `the status is ${refused.status}`);
});
add("handshake", "a request with a cookie is accepted", "MUST", `${TRANSPORT}, section 5`, async (settings) => {
  const first = await Client.connect(settings);
  const set = (first.socket.headers["set-cookie"] ?? []).map((cookie) => cookie.split(";")[0]);
  const client = await Client.initialized(settings, {}, { Cookie: [...set, "other=1"].join("; ") });
  expect(client.agent, "the connection was not initialized");
});

// Initialization.

add("initialize", "initialize is answered with a version", "MUST", "Initialization", async (settings) => {
  const client = await Client.initialized(settings);
  expect(Number.isInteger(client.version), `protocolVersion is ${shown(client.version)}`);
});
add("initialize", "an unknown version is answered with one that the agent has", "MUST", "Initialization", async (settings) => {
  const client = await Client.initialized(settings, { protocolVersion: 9999 });
  expect(client.version < 9999, "the agent claims to have version 9999");
});
add("initialize", "nothing works before initialize", "SHOULD", TRANSPORT, async (settings) => {
  const client = await Client.connect(settings);
  const id = client.request("session/new", { cwd: settings.cwd, mcpServers: [] });
  const answer = await client.next();
  if (answer === undefined) return expect(client.socket.closed, "session/new got no answer, and the connection goes on");
  expect(answer.id === id && isError(answer), `session/new was answered with ${shown(answer)}`);
});

// Messages.

add("messages", "ids come back as they were", "MUST", "JSON-RPC 2.0 section 5", async (settings) => {
  const client = await Client.initialized(settings);
  for (const id of [0, 7, -3, 9007199254740991, "7", "", "ü\"\\", "x".repeat(200)]) {
    client.send({ id, method: "_conformance/none", params: {} });
    const answer = await client.response(id);
    expect(isError(answer), `an unknown method was answered with ${shown(answer)}`);
  }
});
add("messages", "equal ids of two clients do not cross", "MUST", "JSON-RPC 2.0 section 5", async (settings) => {
  const clients = [await Client.initialized(settings), await Client.initialized(settings)];
  const sessions = await Promise.all(clients.map((client) => client.session()));
  const mixed = clients.some((client) => client.others.some((other) => other.method === undefined));
  expect(!mixed, "a client got a response to no request of its own");
  // The ids may be equal only if each client has an agent of its own.
  expect(sessions.every((session) => session.length > 0), "a session has no id");
});
add("messages", "an unknown method gets -32601", "MUST", "JSON-RPC 2.0 section 5.1", async (settings) => {
  const client = await Client.initialized(settings);
  const answer = await client.call("_conformance/none", {});
  expect(isError(answer, -32601), `it was answered with ${shown(answer)}`);
});
add("messages", "text that is not JSON gets -32700 with the id null", "SHOULD", "JSON-RPC 2.0 section 5.1", async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.send('{"jsonrpc":"2.0","id":1,');
  const answer = await client.next();
  expect(answer !== undefined, client.socket.closed ? "the connection was closed" : "it was not answered");
  expect(isError(answer, -32700) && answer.id === null, `it was answered with ${shown(answer)}`);
  expect(await client.isAlive(), "the connection does not work any more");
});
add("messages", "a message that is no request gets -32600", "SHOULD", "JSON-RPC 2.0 section 5.1", async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.send('{"jsonrpc":"2.0","id":1,"method":7}');
  const answer = await client.next();
  expect(isError(answer, -32600), `it was answered with ${shown(answer)}`);
  expect(await client.isAlive(), "the connection does not work any more");
});
add("messages", "a notification gets no answer", "MUST", "JSON-RPC 2.0 section 4.1", async (settings) => {
  const client = await Client.initialized(settings);
  client.notify("_conformance/none", {});
  expect(await client.isAlive(), "the connection does not work any more");
  const answers = client.others.filter((message) => message.method === undefined);
  expect(answers.length === 0, `it was answered with ${shown(answers[0])}`);
});
add("messages", "a binary message is ignored", "MUST", TRANSPORT, async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.sendBinary('{"jsonrpc":"2.0","id":"binary","method":"_conformance/none"}');
  expect(await client.isAlive(), "the connection does not work any more");
  expect(!client.others.some(({ id }) => id === "binary"), "it was answered");
});
add("messages", "a message may come in fragments, with a PING in between", "MUST", "RFC 6455 section 5.4", async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.sendInPieces('{"jsonrpc":"2.0","id":"pieces","method":"_conformance/none","params":{}}');
  await client.response("pieces");
});
add("messages", "a long message is taken", "SHOULD", TRANSPORT, async (settings) => {
  const client = await Client.initialized(settings);
  const answer = await client.call("_conformance/none", { text: "x".repeat(200_000) });
  expect(isError(answer), `it was answered with ${shown(answer)}`);
});

// Sessions.

add("sessions", "a turn has updates and ends", "MUST", "Prompt Turn", async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const session = await client.session();
  const reason = await client.turn(client.prompt(session), session);
  expect(typeof reason === "string", `the stop reason is ${shown(reason)}`);
  const updates = client.others.filter(({ method }) => method === "session/update");
  expect(updates.length > 0, "there was no session/update");
  expect(updates.every(({ params }) => params.sessionId === session), "an update is of another session");
});
add("sessions", "two sessions of a connection are kept apart", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const sessions = [await client.session(), await client.session()];
  expect(sessions[0] !== sessions[1], "both have the same id");
  for (const session of sessions) {
    client.others = [];
    await client.turn(client.prompt(session), session);
    const updates = client.others.filter(({ method }) => method === "session/update");
    expect(updates.some(({ params }) => params.sessionId === session), `there was no update for ${session}`);
  }
});
add("sessions", "a client sees nothing of another client's session", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const [one, other] = [await Client.initialized(settings), await Client.initialized(settings)];
  const session = await one.session();
  const own = await other.session();
  await one.turn(one.prompt(session), session);
  expect(await other.isAlive(), "the other connection does not work any more");
  const seen = other.others.filter(({ method, params }) => method === "session/update" && params.sessionId !== own);
  expect(seen.length === 0, `it got ${shown(seen[0])}`);
});
add("sessions", "a client cannot prompt another client's session", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const [one, other] = [await Client.initialized(settings), await Client.initialized(settings)];
  const session = await one.session();
  const own = await other.session();
  if (session === own) throw new Skipped("each client has an agent of its own, whose sessions have the same ids");
  const answer = await other.response(other.prompt(session), "the response to the other client's prompt");
  expect(isError(answer), "the prompt was accepted");
  expect(await one.isAlive(), "the connection of the session does not work any more");
  const seen = one.others.filter(({ method }) => method === "session/update");
  expect(seen.every(({ params }) => !JSON.stringify(params).includes(settings.prompt)), "the prompt reached the session");
});
add("sessions", "session/cancel ends a turn", "SHOULD", "Cancellation", async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const session = await client.session();
  const id = client.prompt(session);
  client.notify("session/cancel", { sessionId: session });
  const reason = await client.turn(id, session);
  expect(typeof reason === "string", `the stop reason is ${shown(reason)}`);
});
add("sessions", "an unknown session gets an error", "MUST", "Errors", async (settings) => {
  const client = await Client.initialized(settings);
  const answer = await client.response(client.prompt("no-such-session", "x"), "the response to session/prompt");
  expect(isError(answer), `it was answered with ${shown(answer)}`);
});

// Batches.

async function batching(settings) {
  const client = await Client.initialized(settings, { protocolVersion: 2, capabilities: {}, info: { name: "acp-conformance", version: "1" } });
  if (client.version < 2) throw new Skipped("the agent has no version 2");
  return client;
}
add("batches", "an array in version 1 does not break the connection", "MUST", BATCHES, async (settings) => {
  const client = await Client.initialized(settings);
  if (client.version > 1) throw new Skipped("the agent has no version 1");
  client.socket.send('[{"jsonrpc":"2.0","id":1,"method":"_conformance/none"}]');
  expect(await client.isAlive(), "the connection does not work any more");
});
add("batches", "the requests of a batch are answered with one array", "SHOULD", BATCHES, async (settings) => {
  const client = await batching(settings);
  const call = (id) => ({ jsonrpc: "2.0", id, method: "_conformance/none", params: {} });
  client.socket.send(JSON.stringify([call("a"), { jsonrpc: "2.0", method: "_conformance/note", params: {} }, call(2), 7]));
  const answer = await client.until(Array.isArray, "an array");
  const ids = answer.map(({ id }) => id);
  expect(ids.length === 3 && [null, "a", 2].every((id) => ids.includes(id)), `the array is ${shown(answer)}`);
  expect(isError(answer.find(({ id }) => id === null), -32600), "what is no message got no -32600");
});
add("batches", "an empty batch gets one error", "SHOULD", BATCHES, async (settings) => {
  const client = await batching(settings);
  client.socket.send("[]");
  const answer = await client.next();
  expect(isError(answer, -32600) && answer.id === null, `it was answered with ${shown(answer)}`);
});
add("batches", "a batch of notifications gets no answer", "SHOULD", BATCHES, async (settings) => {
  const client = await batching(settings);
  client.socket.send('[{"jsonrpc":"2.0","method":"_conformance/note"}]');
  expect(await client.isAlive(), "the connection does not work any more");
  expect(!client.others.some((message) => message.method === undefined), `it was answered with ${shown(client.others[0])}`);
});

// After a cut.

add("cut", "a session can be loaded after a cut", "MUST", `${TRANSPORT}, v1 durability`, async (settings) => {
  const client = await Client.initialized(settings);
  if (!client.agent.agentCapabilities?.loadSession) throw new Skipped("the agent does not announce loadSession");
  const session = await client.session();
  client.socket.cut();
  const next = await Client.initialized(settings);
  const answer = await next.call("session/load", { sessionId: session, cwd: settings.cwd, mcpServers: [] });
  expect(answer.result !== undefined, `session/load was answered with ${shown(answer)}`);
});
add("cut", "a cut in the middle of a turn does not end the server", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const session = await client.session();
  client.prompt(session);
  client.socket.cut();
  const next = await Client.initialized(settings);
  const own = await next.session();
  expect(typeof (await next.turn(next.prompt(own), own)) === "string", "the next client has no turn");
});

// The draft of resumable connections.

const asking = { clientCapabilities: { transport: { resumable: {} } } };

async function resumable(settings) {
  const client = await Client.initialized(settings, asking);
  const announced = client.agent.capabilities?.transport?.resumable ?? client.agent.agentCapabilities?.transport?.resumable;
  if (announced === undefined) throw new Skipped("the server does not announce transport.resumable");
  return client;
}

/** Connects as the client of an earlier connection, and sends `stream/resume`. Returns the client and the answer. */
async function resume(settings, earlier, cursor) {
  const client = await Client.connect(settings, { "Acp-Connection-Id": earlier.connectionId });
  const params = { connectionId: earlier.connectionId, cursor, cursors: { connection: cursor } };
  const answer = await client.call("stream/resume", params);
  client.version = earlier.version;
  client.lastId = earlier.lastId + 1000;
  return { client, answer };
}

/** Takes part in a turn, and ends the connection after some messages. Returns the cursors, and what waits to be replayed. */
async function interrupted(settings) {
  needPrompt(settings);
  const client = await resumable(settings);
  const session = await client.session();
  const known = client.others.map(cursorOf);
  const id = client.prompt(session);
  const seen = [];
  const first = await client.until(({ method }) => method === "session/update", "the first update");
  seen.push(first);
  return { client, session, id, cursor: cursorOf(first), seen, known };
}

add("resume", "each message has a cursor, and no two are the same", "MAY", RESUME, async (settings) => {
  needPrompt(settings);
  const client = await resumable(settings);
  const session = await client.session();
  await client.turn(client.prompt(session), session);
  const cursors = client.others.map(cursorOf);
  expect(cursors.length > 0 && cursors.every((cursor) => typeof cursor === "string"), `the cursors are ${shown(cursors)}`);
  expect(new Set(cursors).size === cursors.length, "two messages have the same cursor");
});
add("resume", "a cut in the middle of a turn loses and doubles nothing", "MAY", RESUME, async (settings) => {
  const { client, session, id, cursor, seen } = await interrupted(settings);
  client.socket.cut();
  const { client: back, answer } = await resume(settings, client, cursor);
  expect(answer.result !== undefined, `stream/resume was answered with ${shown(answer)}`);
  const reason = await back.turn(id, session);
  expect(typeof reason === "string", `the stop reason is ${shown(reason)}`);
  const cursors = [...seen, ...back.others].map(cursorOf).filter((one) => one !== undefined);
  expect(new Set(cursors).size === cursors.length, "a message came twice");
  // The same turn without a cut has as many updates.
  const whole = await Client.initialized(settings);
  const other = await whole.session();
  await whole.turn(whole.prompt(other), other);
  const texts = (messages) => messages.filter(({ method }) => method === "session/update").map(({ params }) => params.update.content?.text ?? "").join("");
  const [got, wanted] = [texts([...seen, ...back.others]), texts(whole.others)];
  expect(got === wanted, `the updates were ${shown(got)}, and ${shown(wanted)} without a cut`);
});
add("resume", "the same cursor replays the same messages again", "MAY", RESUME, async (settings) => {
  const { client, session, id, cursor } = await interrupted(settings);
  client.socket.cut();
  const replays = [];
  let last = client;
  for (let round = 0; round < 2; round++) {
    const { client: back, answer } = await resume(settings, last, cursor);
    expect(answer.result !== undefined, `stream/resume was answered with ${shown(answer)}`);
    const end = await back.response(id, "the response to session/prompt");
    replays.push([...back.others, end].filter(({ id: own, params }) => own !== undefined || params?.sessionId === session));
    back.connectionId = client.connectionId;
    back.socket.cut();
    last = back;
  }
  const known = (messages) => messages.filter((message) => message.params?.update?.sessionUpdate !== "state_update").map((message) => JSON.stringify(message));
  expect(known(replays[0]).join() === known(replays[1]).join(), `the replays are ${shown(replays[0])} and ${shown(replays[1])}`);
});
add("resume", "a cursor of no message is refused", "MAY", RESUME, async (settings) => {
  const client = await resumable(settings);
  client.socket.cut();
  const { client: back, answer } = await resume(settings, client, "no-cursor");
  expect(isError(answer), `stream/resume was answered with ${shown(answer)}`);
  const failed = back.others.find(({ method }) => method === "stream/resume_failed") ?? (await back.until(({ method }) => method === "stream/resume_failed", "stream/resume_failed"));
  expect(typeof failed.params?.reason === "string", `it has no reason: ${shown(failed)}`);
});
add("resume", "an unknown connection is refused", "MAY", RESUME, async (settings) => {
  const client = await resumable(settings);
  const stranger = { connectionId: "00000000-0000-4000-8000-000000000000", version: 1, lastId: 0 };
  const { answer } = await resume(settings, stranger, cursorOf({ result: client.agent }) ?? "1");
  expect(isError(answer), `stream/resume was answered with ${shown(answer)}`);
});
add("resume", "a new connection continues while the old one seems alive", "MAY", RESUME, async (settings) => {
  const { client, session, id, cursor } = await interrupted(settings);
  const { client: back, answer } = await resume(settings, client, cursor);
  expect(answer.result !== undefined, `stream/resume was answered with ${shown(answer)}`);
  expect(typeof (await back.turn(id, session)) === "string", "the turn has no stop reason");
});
add("resume", "the state of the turn is reported", "MAY", RESUME, async (settings) => {
  const { client, session, cursor } = await interrupted(settings);
  client.socket.cut();
  const { client: back, answer } = await resume(settings, client, cursor);
  if (client.version < 2) {
    const state = answer.result?._meta?.["acp/turnState"]?.state;
    return expect(typeof state === "string", `acp/turnState is missing: ${shown(answer)}`);
  }
  const isState = ({ params }) => params?.sessionId === session && params.update?.sessionUpdate === "state_update";
  expect(back.others.find(isState) ?? (await back.until(isState, "a state_update")), "there was no state_update");
});
add("resume", "a client that does not ask gets no cursors", "MAY", RESUME, async (settings) => {
  await resumable(settings);
  const client = await Client.initialized(settings);
  expect(cursorOf({ result: client.agent }) === undefined, "the response to initialize has a cursor");
});

// The agent crashes.

/** A client that waits for the answer to the prompt that makes the agent exit. */
async function crashed(settings) {
  if (settings.crash === "") throw new Skipped("there is no --crash");
  const client = await Client.initialized(settings);
  const id = client.prompt(await client.session(), settings.crash);
  return { client, answer: await client.response(id).catch(() => undefined) };
}

add("crash", "a request that the agent does not answer gets an error, or the connection ends", "MUST", TRANSPORT, async (settings) => {
  const { client, answer } = await crashed(settings);
  if (answer === undefined) return expect(client.socket.closed, "the request got no answer, and the connection goes on");
  expect(isError(answer) || client.version > 1, `it was answered with ${shown(answer)}`);
});
add("crash", "the next client has an agent that works", "MUST", TRANSPORT, async (settings) => {
  await crashed(settings);
  const client = await Client.initialized(settings);
  await client.session();
});

module.exports = { cases };
