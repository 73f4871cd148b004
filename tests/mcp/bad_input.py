"""The part `bad_input` of tests/mcp/stress.py: a table of requests, and the status and the JSON-RPC error that each must get."""

import json
import tempfile

from mcp_http import BOTH, PREFIX, STATELESS, VERSION, Connection, encoded, eventually, meta, post, serving, stateless, text_of, tool

PARSE, INVALID, NO_METHOD, MISMATCH, UNSUPPORTED = -32700, -32600, -32601, -32020, -32022
ANY = object()
# The id could not be read: it is missing, or null in older revisions.
UNREAD = None


class Case:
    """A request, and what is expected of its response. `code` is the error's code, or None for a response without an error."""

    def __init__(self, name, status, code=None, *, method="POST", fields=(), body=b"", id=ANY, path="/mcp", has=()):
        self.name, self.status, self.code, self.id, self.has = name, status, code, id, dict(has)
        self.method, self.path, self.fields = method, path, dict(fields)
        self.body = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()


def changed(message, **changes):
    return {name: value for name, value in {**message, **changes}.items() if value is not ANY}


def with_meta(message, **changes):
    """The message with other members of `_meta`. ANY removes one."""
    known = {**message["params"]["_meta"], **{PREFIX + name: value for name, value in changes.items()}}
    known = {name: value for name, value in known.items() if value is not ANY}
    return {**message, "params": {**message["params"], "_meta": known}}


def media_types():
    fields, message = stateless("tools/call", {"name": "pid"}, id=1)
    listen, subscribe = stateless("subscriptions/listen", {"notifications": {}}, id=1)
    for kind, status in [("text/plain", 415), ("", 415), (None, 415), ("application/jsonp", 415), ("application/json, text/plain", 415),
                         ("application/json; charset=utf-8", 200), ("Application/JSON", 200)]:
        its = {name: value for name, value in {**fields, "Content-Type": kind}.items() if value is not None}
        yield Case(f"Content-Type: {kind}", status, None if status == 200 else INVALID, fields=its, body=message)
    for accept, status in [("text/html", 406), ("application/json;q=0, text/event-stream;q=0", 406), ("image/*", 406), ("*/*", 200),
                           ("application/*, text/*", 200), (BOTH, 200), ("text/event-stream,application/json;q=0.5", 200)]:
        yield Case(f"Accept: {accept}", status, None if status == 200 else INVALID, fields={**fields, "Accept": accept}, body=message)
    yield Case("Accept of a subscription", 406, INVALID, fields={**listen, "Accept": "application/json"}, body=subscribe)


def bodies():
    fields, message = stateless("tools/call", {"name": "pid"}, id=1)
    text = json.dumps(message).encode()
    for name, body in [("nothing", b""), ("text", b"hello"), ("half", text[:-1]), ("two", text + text), ("not UTF-8", text.replace(b"pid", b"p\xffd")),
                       ("lone surrogate", text.replace(b"pid", b"\\ud800")), ("deep", b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 9999 + b"]" * 9999 + b"}")]:
        yield Case(f"body: {name}", 400, PARSE, fields=fields, body=body, id=UNREAD)
    for name, body in [("empty batch", b"[]"), ("batch", b"[" + text + b"]"), ("number", b"7"), ("string", b'"x"'), ("null", b"null")]:
        yield Case(f"body: {name}", 400, INVALID, fields=fields, body=body, id=UNREAD)
    yield Case("jsonrpc: 1.0", 400, INVALID, fields=fields, body=changed(message, jsonrpc="1.0"), id=1)
    yield Case("no jsonrpc", 400, INVALID, fields=fields, body=changed(message, jsonrpc=ANY), id=1)
    for id in None, {}, [1], True:
        yield Case(f"id: {id}", 400, INVALID, fields=fields, body=changed(message, id=id), id=UNREAD)
    yield Case("method: 7", 400, INVALID, fields=fields, body=changed(message, method=7), id=1)
    yield Case("a response", 400, INVALID, fields=fields, body={"jsonrpc": "2.0", "id": 1, "result": {}})
    yield Case("id twice", 400, INVALID, fields=fields, body=text.replace(b'"id": 1', b'"id": 1, "id": 2'), id=UNREAD)
    yield Case("too large", 413, fields=fields, body=changed(message, x="x" * 100_000))
    notification = {"jsonrpc": "2.0", "method": "notifications/x", "params": message["params"]}
    yield Case("a notification", 202, fields={**fields, "Mcp-Method": "notifications/x"}, body=notification)
    for token in [1], {}, True:
        bad = {**message, "params": {**message["params"], "_meta": meta(token)}}
        yield Case(f"progressToken: {token}", 400, ANY, fields=fields, body=bad, id=1)
    twice = json.dumps(stateless("tools/call", {"name": "pid"}, id=1, token=1)[1]).replace('"progressToken": 1', '"progressToken": 1, "progressToken": 2')
    yield Case("progressToken twice", 400, ANY, fields=fields, body=twice.encode(), id=1)


def headers():
    fields, message = stateless("tools/call", {"name": "pid"}, id=1)
    without = lambda *names: {name: value for name, value in fields.items() if name not in names}
    for version in "1999-01-01", "2027-01-01", "x", "DRAFT-2026-v1":
        case = Case(f"MCP-Protocol-Version: {version}", 400, UNSUPPORTED, fields={**fields, "MCP-Protocol-Version": version},
                    body=with_meta(message, protocolVersion=version), id=1)
        case.data = {"requested": version}
        yield case
    yield Case("no MCP-Protocol-Version", 400, MISMATCH, fields=without("MCP-Protocol-Version"), body=message, id=1)
    for version in VERSION, "2026-07-29", "", 7, None:
        yield Case(f"protocolVersion in the body: {version!r}", 400, ANY, fields=fields, body=with_meta(message, protocolVersion=version), id=1)
    yield Case("no protocolVersion in the body", 400, ANY, fields=fields, body=with_meta(message, protocolVersion=ANY), id=1)
    yield Case("no clientCapabilities in the body", 400, -32602, fields=fields, body=with_meta(message, clientCapabilities=ANY), id=1)
    yield Case("no params", 400, ANY, fields=fields, body=changed(message, params=ANY), id=1)
    yield Case("no Mcp-Method", 400, MISMATCH, fields=without("Mcp-Method"), body=message, id=1)
    yield Case("no Mcp-Name", 400, MISMATCH, fields=without("Mcp-Name"), body=message, id=1)
    for name, value in [("Mcp-Method", "tools/list"), ("Mcp-Method", "Tools/call"), ("Mcp-Method", ""), ("Mcp-Name", "echo"), ("Mcp-Name", "Pid"),
                        ("Mcp-Name", ""), ("Mcp-Name", "=?base64?!!!?="), ("Mcp-Name", encoded("echo")), ("Mcp-Name", "=?BASE64?cGlk?="),
                        ("Mcp-Name", "p\xefd")]:
        yield Case(f"{name}: {value}", 400, MISMATCH, fields={**fields, name: value}, body=message, id=1)
    yield Case("encoded Mcp-Name", 200, fields={**fields, "Mcp-Name": encoded("pid")}, body=message, id=1)
    yield Case("names of fields in lower case", 200, fields={name.lower(): value for name, value in fields.items()}, body=message, id=1)
    yield Case("Mcp-Session-Id without sessions", 200, fields={**fields, "Mcp-Session-Id": "whatever"}, body=message, id=1)
    yield Case("Last-Event-ID without sessions", 200, fields={**fields, "Last-Event-ID": "5"}, body=message, id=1)
    read, resource = stateless("resources/read", {"uri": "test://ä"}, id=1, **{"Mcp-Name": encoded("test://ä")})
    yield Case("an encoded URI", 404, NO_METHOD, fields=read, body=resource, id=1)
    yield Case("another URI", 400, MISMATCH, fields={**read, "Mcp-Name": "test://a"}, body=resource, id=1)
    for method in "no/such/method", "ping", "initialize ", "logging/setLevel":
        yield Case(f"method {method!r}", 404 if method.strip() == method else 400, ANY, fields={**fields, "Mcp-Method": method},
                   body=changed(message, method=method), id=1)


def parameters():
    """Mcp-Param-* and the arguments of a tool that has them."""
    arguments = {"region": "us-west1", "count": 42, "inner": {"on": True}}
    good = {"Mcp-Param-Region": "us-west1", "Mcp-Param-Count": "42", "Mcp-Param-On": "true"}

    def case(name, status, arguments=arguments, **fields):
        its = {name.replace("_", "-"): value for name, value in fields.items()}
        its = {name: value for name, value in {**good, **its}.items() if value is not None}
        all, message = stateless("tools/call", {"name": "route", "arguments": arguments}, id=1, **its)
        return Case(f"Mcp-Param: {name}", status, None if status == 200 else MISMATCH, fields=all, body=message, id=1)

    yield case("all", 200)
    yield case("an unknown one", 200, Mcp_Param_Other="x")
    yield case("missing", 400, Mcp_Param_Region=None)
    yield case("another value", 400, Mcp_Param_Region="us-west2")
    yield case("another case", 400, Mcp_Param_Region="US-west1")
    yield case("encoded", 200, Mcp_Param_Region=encoded("us-west1"))
    yield case("badly encoded", 400, Mcp_Param_Region="=?base64?dXMtd2VzdDE?")
    yield case("not UTF-8", 400, Mcp_Param_Region="=?base64?//8=?=")
    yield case("an equal number", 200, Mcp_Param_Count="42.0")
    yield case("another number", 400, Mcp_Param_Count="43")
    yield case("no number", 400, Mcp_Param_Count="many")
    yield case("missing in an object", 400, Mcp_Param_On=None)
    yield case("another boolean", 400, Mcp_Param_On="false")
    yield case("another boolean's case", 400, Mcp_Param_On="True")
    yield case("null", 200, {**arguments, "region": None}, Mcp_Param_Region=None)
    yield case("no argument", 200, {"count": 42, "inner": {"on": True}}, Mcp_Param_Region=None)
    yield case("text that is not ASCII", 200, {**arguments, "region": "Zürich"}, Mcp_Param_Region=encoded("Zürich"))
    yield case("text that looks encoded", 400, {**arguments, "region": "=?base64?dXM=?="}, Mcp_Param_Region="=?base64?dXM=?=")
    yield case("text that looks encoded, encoded", 200, {**arguments, "region": "=?base64?dXM=?="}, Mcp_Param_Region=encoded("=?base64?dXM=?="))


def methods(session):
    plain = {"Accept": BOTH, "Content-Type": "application/json"}
    stream = {"Accept": "text/event-stream"}
    for method in "PUT", "PATCH", "TRACE", "FOO":
        yield Case(f"{method}", 405, method=method, fields=plain, body=None, has={"allow": ANY})
    for method in "GET", "DELETE":
        yield Case(f"{method} of 2026-07-28", 405, method=method, fields={**stream, "MCP-Protocol-Version": STATELESS}, body=None, has={"allow": "POST"})
        yield Case(f"{method} without a session", 400, ANY, method=method, fields=stream, body=None)
        for unknown in "x", "x" * 1000, session.id + "0", session.id[:-1]:
            yield Case(f"{method} of an unknown session {unknown[:20]!r}", 404, ANY, method=method, fields={**stream, "Mcp-Session-Id": unknown}, body=None)
    its = {"Mcp-Session-Id": session.id}
    yield Case("GET that takes no stream", 406, ANY, method="GET", fields={"Accept": "application/json", **its}, body=None)
    yield Case("another path", 404, path="/mcp/", body=None, method="GET", fields=its)
    yield Case("another path", 404, path="/other", body={}, fields=plain)
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pid"}}
    yield Case("a request without a session", 400, ANY, fields=plain, body=message, id=1)
    yield Case("a request of an unknown session", 404, ANY, fields={**plain, "Mcp-Session-Id": "x"}, body=message, id=1)
    known = {**plain, **its}
    yield Case("a request of the session", 200, fields=known, body=message, id=1)
    yield Case("of the session's version", 200, fields={**known, "MCP-Protocol-Version": VERSION}, body=message, id=1)
    yield Case("of another version", 400, UNSUPPORTED, fields={**known, "MCP-Protocol-Version": "1999-01-01"}, body=message, id=1)
    yield Case("a batch", 400, INVALID, fields={**known, "MCP-Protocol-Version": VERSION}, body=[message], id=UNREAD)
    yield Case("not JSON", 400, PARSE, fields=known, body=b"{", id=UNREAD)
    yield Case("a text", 415, ANY, fields={**known, "Content-Type": "text/plain"}, body=message)
    yield Case("a page", 406, ANY, fields={**known, "Accept": "text/html"}, body=message)
    yield Case("too large", 413, fields=known, body={**message, "x": "x" * 100_000})
    yield Case("an unknown method", 200, NO_METHOD, fields=known, body={**message, "method": "no/such"}, id=1)
    begin = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    yield Case("initialize in a session", 400, INVALID, fields=known, body={**message, "method": "initialize", "params": begin}, id=1)
    yield Case("a notification", 202, fields=known, body={"jsonrpc": "2.0", "method": "notifications/x"})
    yield Case("an answer that nobody waits for", 202, fields=known, body={"jsonrpc": "2.0", "id": 77, "result": {}})
    yield Case("another origin", 403, fields={**known, "Origin": "https://evil.example"}, body=message)
    yield Case("another origin, in 2026-07-28", 403, fields={**stateless("tools/list")[0], "Origin": "https://evil.example"}, body=stateless("tools/list")[1])
    yield Case("no origin", 403, fields={**known, "Origin": "null"}, body=message)
    yield Case("an allowed origin", 200, fields={**known, "Origin": "https://page.example"}, body=message, id=1,
               has={"access-control-allow-origin": "https://page.example", "access-control-expose-headers": "Mcp-Session-Id"})
    yield Case("a preflight", 204, method="OPTIONS", body=None,
               fields={"Origin": "https://page.example", "Access-Control-Request-Method": "DELETE",
                       "Access-Control-Request-Headers": "mcp-session-id, mcp-protocol-version, content-type, last-event-id, mcp-method, mcp-name"},
               has={"access-control-allow-origin": "https://page.example", "access-control-allow-methods": "DELETE",
                    "access-control-allow-headers": "*"})
    # If another spelling names the session, these use it up.
    for method in "GET", "POST", "DELETE":
        yield Case(f"{method} of the session in another spelling", 404, ANY, method=method, fields={**known, "Mcp-Session-Id": session.id.upper()},
                   body=message if method == "POST" else None)


def check(port, case):
    """Sends the request of a case. Returns what is wrong with the response, or None."""
    with Connection(port) as connection:
        connection.socket.settimeout(10)
        connection.send(case.method, case.path, case.fields, case.body)
        status = connection.head()
        fields = dict(connection.fields)
        if status != case.status:
            is_stream = fields.get("content-type") == "text/event-stream"
            return f"status {status} instead of {case.status}: {'a stream' if is_stream else connection.body()[:300]!r}"
        for name, value in case.has.items():
            if name not in fields or (value is not ANY and value.lower() not in fields[name].lower()):
                return f"{name}: {fields.get(name)!r}"
        messages = list(connection.messages()) if status not in (204, 403, 404, 405) or fields.get("content-type", "").startswith("application/json") else []
        if status == 202:
            return f"a body: {messages}" if messages else None
        if case.code is None:
            if messages and status == 200 and "error" in messages[-1]:
                return f"an error: {messages}"
            return None
        if len(messages) != 1 or "error" not in messages[0] or messages[0].get("jsonrpc") != "2.0":
            return f"no JSON-RPC error: {messages}"
        error, id = messages[0]["error"], messages[0].get("id")
        if not isinstance(error["message"], str) or (case.code is not ANY and error["code"] != case.code):
            return f"code {error['code']} instead of {case.code}: {messages[0]}"
        if case.id is not ANY and (id, type(id)) != (case.id, type(case.id)):
            return f"id {id!r} instead of {case.id!r}: {messages[0]}"
        if case.code == UNSUPPORTED and VERSION not in error["data"]["supported"]:
            return f"no supported versions: {error}"
    return None


def authorization():
    """The guard in front of the endpoint, and the metadata of the protected resource."""
    wrong, secret = [], "secret-of-ada-0123456789abcdef"
    document = {"resource": "https://mcp.example", "authorization_servers": ["https://login.example"]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(document, file)
        file.flush()
        for options, has in [([], False), (["--oauth-resource", file.name], True)]:
            with serving(*options, tokens=f"ada all {secret}\n") as server:
                fields, message = stateless("tools/call", {"name": "pid"})
                for given, status in [({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": f"Bearer {secret}"}, 200)]:
                    with server.connect() as connection:
                        found = post(connection, {**fields, **given}, message)
                        names = connection.fields.get("www-authenticate", "")
                        connection.body()
                        if found != status or (status == 401 and has and "/.well-known/oauth-protected-resource" not in names):
                            wrong.append(f"token {given}: {found} {names!r}")
                for path in "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp":
                    with server.connect() as connection:
                        connection.send("GET", path)
                        status = connection.head()
                        body = connection.body()
                        if (status, has and json.loads(body)) != ((200, document) if has else (404, False)):
                            wrong.append(f"{path}: {status} {body[:200]!r}")
    return wrong


def bad_input():
    """Each bad request gets the right status and error, and reaches no process."""
    options = ["--max-message", "64KiB", "--allow-origin", "https://page.example"]
    wrong, total = [], 0
    with serving(*options) as server:
        def call(name):
            with server.connect() as connection:
                return text_of(tool(connection, name)[1][-1])

        with server.connect() as connection:
            # The bridge learns the tools' parameters.
            post(connection, *stateless("tools/list"))
            list(connection.messages())
        pid = call("pid")
        session = server.session()
        before = server.held()
        cases = [*media_types(), *bodies(), *headers(), *parameters(), *methods(session)]
        calls = json.loads(call("counts"))["calls"]
        for case in cases:
            total += 1
            try:
                problem = check(server.port, case)
            except (ConnectionError, TimeoutError, KeyError, ValueError) as error:
                problem = repr(error)
            if problem:
                wrong.append(f"{case.name}: {problem}")
        seen = json.loads(call("counts"))["calls"] - calls - 1
        good = sum(case.status == 200 and case.fields.get("Mcp-Session-Id") != session.id for case in cases)
        if seen != good:
            wrong.append(f"{seen} calls have reached the server, not {good}")
        assert call("pid") == pid, "the process is the same"
        try:
            eventually("nothing is left", lambda: ((held := server.held()) == before, (held, before)), 20)
        except AssertionError as error:
            wrong.append(str(error))
    wrong += authorization()
    for problem in wrong:
        print(f"  WRONG {problem}")
    assert not wrong, f"{len(wrong)} of {total} bad requests got another response"
    print(f"  {total} requests")
