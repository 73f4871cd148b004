#!/usr/bin/env python3
"""Checks examples/observe with promtool and with a Prometheus that scrapes a real server, in plain text and over TLS.

* promtool accepts the configuration, the alerts, their tests, and the output of /metrics;
* every expression of the dashboard has a result, and every alert can be evaluated;
* every metric that they select exists, and every metric of the server is on the dashboard and in the README's tables;
* every query of the README with jq finds lines in the log of the server.

usage: tests/deploy/observe.py      OUTRIGGER=target/release/outrigger; needs prometheus, promtool and jq
"""

import contextlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

OUTRIGGER = os.path.abspath(os.environ.get("OUTRIGGER", "target/release/outrigger"))
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples/observe"
PATIENCE = 60  # seconds, the deadline of every wait
METRICS_TOKEN, USER_TOKEN = "metrics-0123456789abcdef", "user-0123456789abcdef"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"  # as in the README
IGNORE_INPUT = ["sh", "-c", "cat >/dev/null"]
ROUTES = {
    "/acp": {"agent": {"command": IGNORE_INPUT}},
    "/terminal": {"terminal": {"command": ["sh"]}},
    "/process": {"processes": {"record": "."}},
    "/mcp": {"mcp": {"command": IGNORE_INPUT}},
    "/pipe": {"pipe": {"command": ["cat"]}},
    "/live/...": {"app": {"command": IGNORE_INPUT}},
    "/echo": {"echo": {}},
}
# Metrics that Prometheus itself adds to each target.
OF_PROMETHEUS = {"up"}
VARIABLES = {"$__rate_interval": "30s", "$__range": "5m", "$job": ".*", "$instance": ".*", "$route": ".*"}
# The ends of clients that `make_traffic` causes.
CAUSES = ["close", "eof", "protocol_error", "ping_timeout"]


def promtool(*args, **options):
    done = subprocess.run(["promtool", *args], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"promtool {' '.join(map(str, args))}:\n{done.stdout}{done.stderr}"
    print(f"promtool {args[0]} {args[1]}: ok")


@contextlib.contextmanager
def running(*command, **options):
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(what, look):
    """Calls `look` until it returns something true, and returns that."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"no {what} within {PATIENCE} s"
        time.sleep(0.1)
    return found


def start_server(stack, folder):
    """Starts a server with every kind of service. Returns the ports of its plain and its encrypted address."""
    (folder / "tokens").write_text(f"prometheus metrics {METRICS_TOKEN}\nada all {USER_TOKEN}\n")
    (folder / "tokens").chmod(0o600)
    (folder / "serve.json").write_text(json.dumps({"routes": ROUTES}))
    options = "--token-file tokens --tls-self-signed --tls-dir . --deflate --ping-interval 1s --ping-timeout 1s --log-format json"
    listen = "--listen plain:127.0.0.1:0 --listen 127.0.0.1:0"
    command = [OUTRIGGER, "serve", "--config", "serve.json", *options.split(), *listen.split()]
    log = stack.enter_context(open(folder / "log", "w"))
    server = stack.enter_context(running(*command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True))
    ports = {}
    while len(ports) < 2:
        line = server.stdout.readline()
        assert line, f"the server ended: {(folder / 'log').read_text()}"
        if found := re.search(r"listening on (ws|wss)://127\.0\.0\.1:(\d+)", line):
            ports[found[1]] = int(found[2])
    return ports["ws"], ports["wss"]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def get(url, token=None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def read_until_end(connection):
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            pass


def connect(port, path, *fields):
    """Opens a WebSocket. Returns its connection and the head of the response."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    fields = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        f"Authorization: Bearer {USER_TOKEN}",
        f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01",
        *fields,
    ]
    connection.sendall("".join(field + "\r\n" for field in [*fields, ""]).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, head
        head += byte
    assert head.startswith(b"HTTP/1.1 101 "), head
    return connection, head.decode()


def make_traffic(plain, tls):
    """Clients that end for several reasons, refused requests, a cut and resumed connection, and a failed TLS handshake."""
    for path in ["/echo", "/pipe", "/terminal", "/live/room"]:
        connection, _ = connect(plain, path)
        connection.sendall(b"\x82\x82\0\0\0\0hi")
        connection.recv(1 if path in ["/echo", "/pipe"] else 0)
        connection.sendall(b"\x88\x82\0\0\0\0\x03\xe8")
        read_until_end(connection)
        connection.close()
    connect(plain, "/echo")[0].close()
    connection, _ = connect(plain, "/echo")
    connection.sendall(b"\xff\xff\xff")
    read_until_end(connection)
    connection.close()
    # The server ends this one, because it does not answer a PING.
    connection, _ = connect(plain, "/echo")
    read_until_end(connection)
    connection.close()

    connection, head = connect(plain, "/echo", "Outrigger-Resume: new")
    resume = re.search(r"Outrigger-Resume: (\S+)", head)[1]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    connection, head = connect(plain, "/echo", f"Outrigger-Resume: {resume}; received=0")
    connection.sendall(b"\x88\x82\0\0\0\0\x03\xe8")
    read_until_end(connection)
    connection.close()

    base = f"http://127.0.0.1:{plain}"
    assert get(f"{base}/metrics", "a wrong token")[0] == 401
    assert get(f"{base}/nowhere", USER_TOKEN)[0] == 404
    assert get(f"{base}/process", METRICS_TOKEN)[0] == 403
    with socket.create_connection(("127.0.0.1", tls), timeout=PATIENCE) as connection:
        connection.sendall(b"\x16\x03\x01\x00\x05hello")
        read_until_end(connection)


def write_configuration(folder, plain, tls):
    """The example, with the addresses of the server. The job in the comment, for TLS, becomes a job of its own."""
    text = (EXAMPLES / "prometheus.yml").read_text()
    begin = text.index("  # - job_name:")
    text = text[:begin] + re.sub(r"(?m)^  # ", "  ", text[begin:])
    for old, new in [
        ("_interval: 15s", "_interval: 1s"),
        ("127.0.0.1:7070", f"127.0.0.1:{plain}"),
        ("my.example:7443", f"127.0.0.1:{tls}"),
        ("ca_file: ca.pem", "ca_file: outrigger.pem"),
    ]:
        assert old in text, old
        text = text.replace(old, new)
    jobs = text.split("- job_name: outrigger\n")
    assert len(jobs) == 3, "a job in plain text and one over TLS"
    text = f"{jobs[0]}- job_name: outrigger\n{jobs[1]}- job_name: outrigger-tls\n{jobs[2]}"
    (folder / "prometheus.yml").write_text(text)
    (folder / "outrigger.token").write_text(METRICS_TOKEN)
    shutil.copy(EXAMPLES / "alerts.yml", folder)


class Prometheus:
    def __init__(self, stack, folder):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/api/v1"
        log = stack.enter_context(open(folder / "prometheus.log", "w"))
        arguments = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
        self.process = stack.enter_context(running("prometheus", *arguments, cwd=folder, stdout=log, stderr=log))
        self.log = folder / "prometheus.log"

    def ask(self, what, **parameters):
        assert self.process.poll() is None, self.log.read_text()
        try:
            status, text = get(f"{self.url}/{what}?{urllib.parse.urlencode(parameters)}")
        except OSError:  # It does not listen yet.
            return None
        # It answers 503 until it has started.
        return None if status == 503 else json.loads(text)

    def query(self, expression):
        """The result of an expression. An expression that cannot be parsed or evaluated fails."""
        answer = wait_for("answer of Prometheus", lambda: self.ask("query", query=expression))
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        return answer["data"]["result"]


def selectors(expression):
    """The metrics that an expression selects, each with its matchers."""
    expression = re.sub(r"\b(by|without|ignoring|on)\s*\([^)]*\)|\[[^]]*\]", "", expression)
    # A name with its matchers, if it is not the name of a function. No keyword of the language contains `_`.
    found = re.findall(r"([a-zA-Z_:][\w:]*)(?!\w*\s*\()(\{[^}]*\})?", expression)
    return [(name, matchers) for name, matchers in found if "_" in name or name in OF_PROMETHEUS]


def substitute(expression):
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, f"unknown variable: {expression}"
    return expression


def check_dashboard(dashboard):
    """Returns the expressions of the panels by title, after checks of what needs no server."""
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels), "ids are unique"
    taken, expressions = {}, []
    for panel in panels:
        title, place = panel["title"], panel["gridPos"]
        for cell in [(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])]:
            assert cell[0] < 24 and cell not in taken, f"{title} overlaps {taken.get(cell)}"
            taken[cell] = title
        if panel["type"] == "row":
            continue
        assert panel.get("description"), f"{title}: no description"
        assert panel["fieldConfig"]["defaults"].get("unit"), f"{title}: no unit"
        assert panel["targets"], f"{title}: no expression"
        expressions += [(title, substitute(target["expr"])) for target in panel["targets"]]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            series = substitute(series).removesuffix("}")
            series += f', {label}!=""}}' if "{" in series else f'{{{label}!=""}}'
            expressions.append((f"variable {variable['name']}", f"count by ({label}) ({series})"))
    return expressions


def check_log_queries(readme, folder):
    """Runs the README's queries with jq on the log of the server."""
    queries = re.findall(r"(?m)^jq .* outrigger\.log$", readme)
    assert queries, "the README has queries with jq"
    shutil.copy(folder / "log", folder / "outrigger.log")
    for query in queries:
        done = subprocess.run(query, shell=True, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.strip() not in ["", "[]", "null"], f"{query}: {done.stdout}{done.stderr}"
    print(f"{len(queries)} queries with jq: ok")


def main():
    for program in ["prometheus", "promtool", "jq"]:
        assert shutil.which(program), f"there is no {program}: install Debian's packages prometheus and jq"
    readme = (EXAMPLES / "README.md").read_text()
    dashboard = json.loads((EXAMPLES / "dashboard.json").read_text())
    expressions = check_dashboard(dashboard)
    promtool("check", "rules", EXAMPLES / "alerts.yml")
    promtool("test", "rules", EXAMPLES / "alerts_test.yml")

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plain, tls = start_server(stack, folder)
        write_configuration(folder, plain, tls)
        # The example as it is, beside a token file, and as the server below uses it.
        (folder / "example").mkdir()
        for name in ["prometheus.yml", "alerts.yml"]:
            shutil.copy(EXAMPLES / name, folder / "example")
        (folder / "example/outrigger.token").write_text(METRICS_TOKEN)
        promtool("check", "config", folder / "example/prometheus.yml")
        promtool("check", "config", folder / "prometheus.yml")

        make_traffic(plain, tls)
        prometheus = Prometheus(stack, folder)
        status, metrics = get(f"http://127.0.0.1:{plain}/metrics", METRICS_TOKEN)
        assert status == 200, metrics
        promtool("check", "metrics", input=metrics)
        families = set(re.findall(r"(?m)^# TYPE (\S+)", metrics))
        samples = set(re.findall(r"(?m)^([a-zA-Z_:][\w:]*)", metrics))
        empty = {family for family in families if not {family, f"{family}_count"} & samples}
        assert not empty, f"the traffic of this test does not make samples of {empty}"

        alerts = []
        for group in wait_for("rules", lambda: (prometheus.ask("rules") or {}).get("data"))["groups"]:
            alerts += [(rule["name"], rule["query"]) for rule in group["rules"]]
        written = re.findall(r"(?m)^ +- alert: (\w+)", (EXAMPLES / "alerts.yml").read_text())
        assert written == [name for name, _ in alerts] and written, (written, alerts)

        used = set()
        for title, expression in expressions + alerts:
            found = selectors(expression)
            assert found, f"{title}: no metric in {expression}"
            for metric, _ in found:
                assert metric in samples | OF_PROMETHEUS, f"{title}: the server has no metric {metric}"
                used.add(metric)
        shown = set()
        for _, expression in expressions:
            shown.update(metric for metric, _ in selectors(expression))
        shown |= {re.sub("_(bucket|sum|count)$", "", metric) for metric in shown}
        missing = families - shown
        assert not missing, f"the dashboard does not show {missing}"

        listed = set(re.findall(r"(?m)^\| `(\w+)` \| (?:counter|gauge|histogram) ", readme))
        assert listed == families, f"the tables of README.md and the metrics of the server differ: {listed ^ families}"

        for job in ["outrigger", "outrigger-tls"]:
            wait_for(f"scrape of {job}", lambda: prometheus.query(f'up{{job="{job}"}} == 1'))
            for cause in CAUSES:
                wait_for(cause, lambda: prometheus.query(f'outrigger_disconnects_total{{job="{job}", cause="{cause}"}} > 0'))
        for metric in ["outrigger_resumes_total", "outrigger_wrong_tokens_total", 'outrigger_refusals_total{reason="scope"}']:
            wait_for(metric, lambda: prometheus.query(f"{metric} > 0"))
        check_log_queries(readme, folder)
        # Rates need two scrapes.
        for title, expression in expressions:
            wait_for(f"result of {title}: {expression}", lambda: prometheus.query(expression))
        for name, expression in alerts:
            prometheus.query(expression)
            for metric, matchers in selectors(expression):
                selected = metric + matchers
                wait_for(f"result of {name}: {selected}", lambda: prometheus.query(selected))
        panels = sum(panel["type"] != "row" for panel in dashboard["panels"])
        print(f"{len(expressions)} expressions of {panels} panels and {len(alerts)} alerts use {len(used)} metrics: ok")


if __name__ == "__main__":
    main()
