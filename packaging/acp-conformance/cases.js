// The cases: what each needs of the specification, and how it is tried. `level` is MUST if clients break without it, SHOULD if the text
// recommends it or only says it in passing, and MAY for an option that is checked where it is offered.
"use strict";

const { Client, Skipped, expect, hello, shown } = require("./client.js");
const { Refused, request } = require("./websocket.js");

const TRANSPORT = "Streamable HTTP & WebSocket Transport";
const RESUME = "Durable & Resumable HTTP/WS Transport (#2208)";
const LIVENESS = `${TRANSPORT}, liveness`;
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
  const cookies = Object.entries({ ...first.cookies, other: "1" }).map(([name, value]) => `${name}=${value}`);
  const client = await Client.initialized(settings, {}, { Cookie: cookies.join("; ") });
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
  const [one, other] = [await Client.initialized(settings), await Client.initialized(settings)];
  // With an equal id, one client asks for a session and the other one for what does not exist, so a response that crosses is of the
  // wrong kind.
  const ask = (client, id, isSession) => client.send(isSession
    ? { id, method: "session/new", params: { cwd: settings.cwd, mcpServers: [] } }
    : { id, method: "_conformance/none", params: {} });
  const rounds = ["a", "b", "c", "d"];
  rounds.forEach((id, round) => {
    ask(one, id, round % 2 === 0);
    ask(other, id, round % 2 === 1);
  });
  for (const [client, first] of [[one, 0], [other, 1]]) {
    const answers = new Map();
    while (answers.size < rounds.length) {
      const answer = await client.until((message) => message.method === undefined, "the responses");
      expect(rounds.includes(answer.id) && !answers.has(answer.id), `a client got ${shown(answer)}, which answers no request of its own`);
      answers.set(answer.id, answer);
    }
    rounds.forEach((id, round) => {
      const answer = answers.get(id);
      const isRight = round % 2 === first ? typeof answer.result?.sessionId === "string" : isError(answer);
      expect(isRight, `a client got the other client's response: ${shown(answer)}`);
    });
  }
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
  // An agent may not know of a turn that it has not begun.
  const isSaid = ({ method, params }) => method === "session/update" && params.update?.sessionUpdate === "agent_message_chunk";
  const isEnd = (message) => (client.version < 2 ? message.method === undefined && message.id === id : message.params?.update?.state === "idle");
  const first = await client.until((message) => isSaid(message) || isEnd(message), "an update of the turn");
  if (isEnd(first)) throw new Skipped("the turn had ended before it could be cancelled");
  client.notify("session/cancel", { sessionId: session });
  const known = client.others.length;
  const end = await client.until(isEnd, "the end of the turn");
  const reason = client.version < 2 ? end.result?.stopReason : end.params.update.stopReason;
  if (reason === "end_turn" && !client.others.slice(known).some(isSaid)) {
    throw new Skipped("the turn had nothing left to cancel; give a --prompt with a longer answer");
  }
  expect(reason === "cancelled", `the stop reason is ${shown(reason)}`);
});
add("sessions", "an unknown session gets an error", "MUST", "Errors", async (settings) => {
  const client = await Client.initialized(settings);
  const answer = await client.response(client.prompt("no-such-session", "x"), "the response to session/prompt");
  expect(isError(answer), `it was answered with ${shown(answer)}`);
});

// Batches.

async function batching(settings) {
  const client = await Client.initialized(settings, hello(2));
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
  const next = await Client.initialized(settings, {}, {}, client);
  const answer = await next.call("session/load", { sessionId: session, cwd: settings.cwd, mcpServers: [] });
  expect(answer.result !== undefined, `session/load was answered with ${shown(answer)}`);
});
add("cut", "a cut in the middle of a turn does not end the server", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const session = await client.session();
  client.prompt(session);
  client.socket.cut();
  const next = await Client.initialized(settings, {}, {}, client);
  const own = await next.session();
  expect(typeof (await next.turn(next.prompt(own), own)) === "string", "the next client has no turn");
});

// Connections that are half open.

add("liveness", "a PING is answered with its payload", "MUST", "RFC 6455 section 5.5.3", async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.ping("are you there?");
  expect(await client.isAlive(), "the connection does not work any more");
  expect(client.socket.pongs.includes("are you there?"), `the PONGs are ${shown(client.socket.pongs)}`);
});
add("liveness", "a client that stops reading in the middle of a turn holds up no other one", "MUST", LIVENESS, async (settings) => {
  needPrompt(settings);
  const silent = await Client.initialized(settings);
  const session = await silent.session();
  silent.socket.answersPings = false;
  silent.socket.pause();
  silent.prompt(session);
  const client = await Client.initialized(settings);
  const own = await client.session();
  for (let turn = 0; turn < 3; turn++) {
    expect(typeof (await client.turn(client.prompt(own), own)) === "string", "the other client has no turn");
  }
});
add("liveness", "a connection that answers no PING is ended, and its session can be loaded", "MAY", LIVENESS, async (settings) => {
  const silent = await Client.initialized(settings);
  const session = await silent.session();
  silent.socket.answersPings = false;
  const began = Date.now();
  while (silent.socket.pings === 0) {
    if (Date.now() - began > settings.timeout) throw new Skipped(`the server sends no PING within ${settings.timeout / 1000} s`);
    await silent.next(50);
  }
  expect(await silent.socket.ending(3 * settings.timeout), "it goes on after PINGs that were not answered");
  const client = await Client.initialized(settings, {}, {}, silent);
  if (client.version > 1 || !client.agent.agentCapabilities?.loadSession) return;
  const answer = await client.call("session/load", { sessionId: session, cwd: settings.cwd, mcpServers: [] });
  expect(answer.result !== undefined, `session/load was answered with ${shown(answer)}`);
});

// The draft of resumable connections.

async function resumable(settings, version) {
  const client = await Client.initialized(settings, hello(version, { transport: { resumable: {} } }));
  const announced = client.agent.capabilities?.transport?.resumable ?? client.agent.agentCapabilities?.transport?.resumable;
  if (announced === undefined) throw new Skipped("the server does not announce transport.resumable");
  if (client.version !== version) throw new Skipped(`the agent has no version ${version}`);
  client.retention = announced;
  return client;
}

/**
 * Connects as the client of an earlier connection, and sends `stream/resume`. Returns the client, the response if it came first, and
 * what refuses to resume. The draft demands no response, so any other message shows that the server has resumed.
 */
async function resume(settings, earlier, cursor) {
  const client = await Client.connect(settings, { "Acp-Connection-Id": earlier.connectionId }, earlier);
  client.version = earlier.version;
  client.lastId = earlier.lastId + 1000;
  const params = { connectionId: earlier.connectionId, cursor, cursors: { connection: cursor } };
  client.resumeId = client.request("stream/resume", params);
  const isResponse = (message) => message.method === undefined && message.id === client.resumeId;
  const first = await client.next();
  if (first === undefined) {
    expect(await client.isAlive(), "stream/resume had no effect, and the connection does not work");
    return { client };
  }
  if (first.method === "stream/resume_failed") return { client, refused: first };
  if (isResponse(first) && isError(first)) return { client, refused: await client.until(({ method }) => method === "stream/resume_failed", "stream/resume_failed") };
  if (isResponse(first)) return { client, answer: first };
  client.others.push(first);
  return { client };
}

/** The same, if the server must resume. */
async function resumed(settings, earlier, cursor) {
  const { refused, ...rest } = await resume(settings, earlier, cursor);
  expect(refused === undefined, `stream/resume was answered with ${shown(refused)}`);
  return rest;
}

/** The server has refused to resume: it says why, and sends nothing of the stream. */
async function expectRefusal({ client, refused }) {
  expect(refused !== undefined, "stream/resume was not refused");
  expect(typeof refused.params?.reason === "string", `stream/resume_failed has no reason: ${shown(refused)}`);
  for (let message; (message = await client.next(300)) !== undefined;) {
    expect(message.method !== "session/update", `after stream/resume_failed, the client got ${shown(message)}`);
  }
}

/** Begins a turn, and waits for its first update. Returns what the client has got. */
async function interrupted(settings, version) {
  needPrompt(settings);
  const client = await resumable(settings, version);
  const session = await client.session();
  const id = client.prompt(session);
  const first = await client.until(({ method }) => method === "session/update", "the first update");
  const answer = client.others.find((message) => message.method === undefined && message.id === id);
  return { client, session, id, answer, cursor: cursorOf(first), seen: [first] };
}

/** Waits for the end of a turn that was interrupted. Returns the stop reason, and the response to the prompt if it came now. */
async function finish(back, { id, session, answer }) {
  const response = answer ? undefined : await back.response(id, "the response to session/prompt");
  const reason = back.version < 2 ? (response ?? answer).result?.stopReason : await back.idle(session);
  expect(typeof reason === "string", `the stop reason is ${shown(reason)}`);
  return response;
}

for (const version of [1, 2]) {
  const suffix = version === 1 ? "" : ", in version 2";
  add("resume", `each message has a cursor, and no two are the same${suffix}`, "MAY", RESUME, async (settings) => {
    needPrompt(settings);
    const client = await resumable(settings, version);
    const session = await client.session();
    await client.turn(client.prompt(session), session);
    const cursors = client.others.map(cursorOf);
    expect(cursors.length > 0 && cursors.every((cursor) => typeof cursor === "string"), `the cursors are ${shown(cursors)}`);
    expect(new Set(cursors).size === cursors.length, "two messages have the same cursor");
  });
  add("resume", `a cut in the middle of a turn loses and doubles nothing${suffix}`, "MAY", RESUME, async (settings) => {
    const cut = await interrupted(settings, version);
    cut.client.socket.cut();
    const { client: back } = await resumed(settings, cut.client, cut.cursor);
    await finish(back, cut);
    const got = [...cut.seen, ...back.others];
    const cursors = got.map(cursorOf).filter((one) => one !== undefined);
    expect(new Set(cursors).size === cursors.length, "a message came twice");
    // The same turn without a cut has as many updates.
    const whole = await Client.initialized(settings, hello(version));
    const other = await whole.session();
    await whole.turn(whole.prompt(other), other);
    const texts = (messages) => messages.filter(({ method }) => method === "session/update").map(({ params }) => params.update.content?.text ?? "").join("");
    expect(texts(got) === texts(whole.others), `the updates were ${shown(texts(got))}, and ${shown(texts(whole.others))} without a cut`);
  });
  add("resume", `the same cursor replays the same messages again${suffix}`, "MAY", RESUME, async (settings) => {
    const cut = await interrupted(settings, version);
    cut.client.socket.cut();
    const replays = [];
    let last = cut.client;
    for (let round = 0; round < 2; round++) {
      const { client: back } = await resumed(settings, last, cut.cursor);
      const response = await finish(back, cut);
      const isOfTurn = ({ id, params }) => (id !== undefined ? id !== back.resumeId : params?.sessionId === cut.session && params.update?.sessionUpdate !== "state_update");
      replays.push([...back.others, response].filter((message) => message !== undefined && isOfTurn(message)).map((message) => JSON.stringify(message)));
      back.connectionId = cut.client.connectionId;
      back.socket.cut();
      last = back;
    }
    expect(replays[0].length > 0 && replays[0].join() === replays[1].join(), `the replays are ${shown(replays[0])} and ${shown(replays[1])}`);
  });
  add("resume", `a new connection continues while the old one seems alive${suffix}`, "MAY", RESUME, async (settings) => {
    const open = await interrupted(settings, version);
    const { client: back } = await resumed(settings, open.client, open.cursor);
    await finish(back, open);
  });
  add("resume", `the state of the turn is reported${suffix}`, "MAY", RESUME, async (settings) => {
    const { client, session, cursor } = await interrupted(settings, version);
    client.socket.cut();
    const { client: back, answer } = await resumed(settings, client, cursor);
    if (version < 2) {
      // Both the response and the state in it are optional.
      const response = answer ?? (await back.response(back.resumeId).catch(() => undefined));
      const state = response?.result?._meta?.["acp/turnState"]?.state;
      if (state === undefined) throw new Skipped("the server does not report acp/turnState");
      return expect(typeof state === "string", `acp/turnState is ${shown(response)}`);
    }
    const isState = ({ params }) => params?.sessionId === session && params.update?.sessionUpdate === "state_update";
    return expect(back.others.find(isState) ?? (await back.until(isState, "a state_update")), "there was no state_update");
  });
}
add("resume", "a cursor of no message is refused", "MAY", RESUME, async (settings) => {
  const { client } = await interrupted(settings, 1);
  client.socket.cut();
  await expectRefusal(await resume(settings, client, "no-cursor"));
});
add("resume", "a cursor that is no longer retained is refused", "MAY", RESUME, async (settings) => {
  const client = await resumable(settings, 1);
  const { retentionMessages: count, retentionSeconds: seconds } = client.retention;
  await client.session();
  // The position after a message of the connection, which later ones make too old.
  const answer = await client.call("_conformance/none", {});
  const cursor = cursorOf(answer);
  let last = client;
  if (count <= 2000) {
    const ids = [];
    for (const factor of [2, 4, 8]) {
      const more = factor * count + 100 - ids.length;
      ids.push(...(await flood(last, ids.length, more)));
      last.socket.cut();
      const next = await resume(settings, last, cursor);
      if (next.refused) return expectRefusal(next);
      // The server may keep more than it has announced. Then it replays everything.
      const replayed = await responses(next.client, ids.length);
      expect(replayed.join() === ids.join(), "the server resumed at a position that it does not have, and sent something else");
      next.client.connectionId = client.connectionId;
      last = next.client;
    }
  }
  if (seconds * 1000 <= 2 * settings.timeout) {
    last.socket.cut();
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000 + 1000));
    const next = await resume(settings, last, cursor);
    if (next.refused) return expectRefusal(next);
  }
  throw new Skipped(`the server keeps more than ${count} messages and ${seconds} s`);
});
add("resume", "an unknown connection is refused", "MAY", RESUME, async (settings) => {
  const client = await resumable(settings, 1);
  const stranger = { connectionId: "00000000-0000-4000-8000-000000000000", version: 1, lastId: 0 };
  await expectRefusal(await resume(settings, stranger, cursorOf({ result: client.agent }) ?? "1"));
});
add("resume", "a client that does not ask gets no cursors", "MAY", RESUME, async (settings) => {
  await resumable(settings, 1);
  const client = await Client.initialized(settings);
  expect(cursorOf({ result: client.agent }) === undefined, "the response to initialize has a cursor");
});

/** The ids of the next responses that `flood` has asked for. */
async function responses(client, count) {
  const ids = [];
  while (ids.length < count) {
    const message = await client.until(({ id, method }) => method === undefined && String(id).startsWith("flood"), "the responses");
    ids.push(message.id);
  }
  return ids;
}

/** Lets the server send many messages. The ids are long, for servers that limit what they keep in bytes. Returns them as they came. */
async function flood(client, from, count) {
  const ids = [];
  for (let at = from; at < from + count; at += 100) {
    const some = Math.min(100, from + count - at);
    for (let one = 0; one < some; one++) {
      client.send({ id: `flood ${at + one} ${"x".repeat(900)}`, method: "_conformance/none", params: {} });
    }
    ids.push(...(await responses(client, some)));
  }
  return ids;
}

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
