#!/usr/bin/env python3
"""Runs .github/workflows/release.yml in a folder: its jobs, conditions and scripts as they are written, with registries that live in
this process. A release must finish even if one registry refuses, say which, and publish the rest when it runs again.

usage: tests/deploy/release_run.py [--refuse JOB]      by default each job that publishes refuses once, in turn, and then none does

Real: the texts are turned (packaging/turn.py), the tag is checked, cargo publishes to a registry, npm to another, wheels are uploaded,
the tap and the AUR are git repositories. Replaced: GitHub (`gh` and its actions) and docker, by programs that write down what they are
asked. The programs are not compiled again: the artifacts of the jobs up to `packages` are those of `.ci/run packages`.
"""

import argparse
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = dict(line.split("=", 1) for line in (ROOT / "packaging/names").read_text().splitlines() if re.match("[A-Z]+=", line))
# These compile, or run the tests. Their artifacts are there already.
GIVEN = ("tests", "binaries", "sbom", "packages")
PUBLISHERS = ("crates-io", "pypi", "npm", "ghcr", "github", "homebrew", "aur")


class Registries:
    """What is published, and which job is refused."""

    def __init__(self):
        self.refused = None
        self.crates, self.npm, self.wheels = {}, {}, {}
        self.log = []

    def serve(self):
        registries = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, body, kind="application/json"):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def body(self):
                if self.headers.get("Transfer-Encoding") == "chunked":
                    data = b""
                    while size := int(self.rfile.readline(), 16):
                        data += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                    return data
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def do_GET(self):
                registries.get(self, self.path.split("?")[0])

            def do_PUT(self):
                registries.put(self, self.path.split("?")[0], self.body())

            def do_POST(self):
                registries.post(self, self.path.split("?")[0], self.body())

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                """A client has closed its connection, as clients do that were refused."""

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def get(self, request, path):
        if path == "/cargo/config.json":
            return request.reply(200, {"dl": f"{self.url}/cargo/dl", "api": f"{self.url}/cargo"})
        if path.startswith("/cargo/"):
            versions = self.crates.get(path.rsplit("/", 1)[1])
            return request.reply(200, "\n".join(versions.values()).encode(), "text/plain") if versions else request.reply(404, {})
        if path.startswith("/npm/"):
            name = path.removeprefix("/npm/").replace("%2f", "/")
            packed = self.npm.get(name)
            return request.reply(200, packed) if packed else request.reply(404, {"error": "not found"})
        return request.reply(404, {})

    def put(self, request, path, body):
        if path == "/cargo/api/v1/crates/new":
            if self.refused == "crates-io":
                return request.reply(403, {"errors": [{"detail": "this registry refuses"}]})
            (length,) = struct.unpack_from("<I", body)
            crate = json.loads(body[4 : 4 + length])
            archive = body[8 + length :]
            entry = {"name": crate["name"], "vers": crate["vers"], "deps": [], "features": {}, "yanked": False}
            entry["cksum"] = hashlib.sha256(archive).hexdigest()
            assert crate["vers"] not in self.crates.get(crate["name"], {}), "published twice"
            self.crates.setdefault(crate["name"], {})[crate["vers"]] = json.dumps(entry)
            return request.reply(200, {"warnings": {"invalid_categories": [], "invalid_badges": [], "other": []}})
        if path.startswith("/npm/"):
            if self.refused == "npm":
                return request.reply(403, {"error": "this registry refuses"})
            package = json.loads(body)
            known = self.npm.setdefault(package["name"], package)
            assert known is package or not known["versions"].keys() & package["versions"].keys(), "published twice"
            known["versions"] |= package["versions"]
            return request.reply(201, {"ok": True})
        return request.reply(404, {})

    def post(self, request, path, body):
        if path != "/pypi/":
            return request.reply(404, {})
        if self.refused == "pypi":
            return request.reply(403, b"this registry refuses", "text/plain")
        name = re.search(rb'filename="([^"]+)"', body).group(1).decode()
        if name in self.wheels:
            return request.reply(400, b"File already exists", "text/plain")
        self.wheels[name] = len(body)
        return request.reply(200, b"ok", "text/plain")


# Programs that write down what they are asked. Each line of the file is a call.
GH = """#!/bin/sh
set -eu
state=$RELEASE_STATE
case "$1 $2" in
  "release view") [ -e "$state/release" ] ;;
  "release create") echo draft >"$state/release" ;;
  "release upload") shift 4; mkdir -p "$state/files"; cp "$@" "$state/files" ;;
  "release edit") [ "$RELEASE_REFUSED" != github ] || { echo "this registry refuses" >&2; exit 1; }; echo public >"$state/release" ;;
  *) echo "gh: what is $*?" >&2; exit 1 ;;
esac
"""
DOCKER = """#!/bin/sh
set -eu
case "$1" in
  login) cat >/dev/null ;;
  run) echo "outrigger $VERSION" ;;
  buildx)
    case "$*" in
      *--push*)
        [ "$RELEASE_REFUSED" != ghcr ] || { echo "this registry refuses" >&2; exit 1; }
        metadata=; previous=
        for word in "$@"; do
          [ "$previous" != --metadata-file ] || metadata=$word
          [ "$previous" != --tag ] || echo "$word" >>"$RELEASE_STATE/images"
          previous=$word
        done
        echo '{"containerimage.digest": "sha256:0"}' >"$metadata" ;;
    esac ;;
  *) echo "docker: what is $*?" >&2; exit 1 ;;
esac
"""


class Run:
    """One run of the workflow, or several: what succeeded before is not run again."""

    def __init__(self, folder, registries):
        self.folder, self.registries = folder, registries
        self.workflow = yaml.safe_load((folder / "source/.github/workflows/release.yml").read_text())
        self.results, self.outputs = {}, {}
        self.bin, self.state, self.artifacts = folder / "bin", folder / "state", folder / "artifacts"
        for path in (self.bin, self.state, self.artifacts, folder / "home"):
            path.mkdir()
        for name, text in (("gh", GH), ("docker", DOCKER)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        url = registries.url
        (folder / "home/.npmrc").write_text(f"registry={url}/npm/\n//{url.split('//')[1]}/npm/:_authToken=secret\n")
        for name in ("tap", "aur"):
            git("init", "--quiet", "--bare", "--initial-branch=main", folder / f"{name}.git")
            clone = folder / f"{name}-first"
            git("clone", "--quiet", folder / f"{name}.git", clone)
            git("-C", clone, *AUTHOR, "commit", "--quiet", "--allow-empty", "-m", "first")
            git("-C", clone, "push", "--quiet", "origin", "HEAD:main")
        self.urls()

    def urls(self):
        """Where the addresses of the workflow lead."""
        refused = self.registries.refused
        places = {
            "git@github.com:someone/homebrew-tap.git": "tap.git" if refused != "homebrew" else "nowhere.git",
            f"ssh://aur@aur.archlinux.org/{NAMES['AUR']}.git": "aur.git" if refused != "aur" else "nowhere.git",
        }
        text = "".join(f'[url "{self.folder / place}"]\n\tinsteadOf = {address}\n' for address, place in places.items())
        (self.folder / "home/.gitconfig").write_text(text + "[safe]\n\tdirectory = *\n")

    def value(self, text, local):
        """A text with its expressions."""

        def one(match):
            expression = match.group(1).strip()
            if expression == "toJSON(needs)":
                return json.dumps({name: {"result": result} for name, result in self.results.items()})
            if expression.startswith("needs."):
                _, job, kind, *name = expression.split(".")
                return self.outputs[job][name[0]] if kind == "outputs" else self.results[job]
            if expression.startswith("steps."):
                _, step, _, name = expression.split(".")
                return local.get(step, {}).get(name, "")
            known = {"github.token": "secret", "github.repository": "someone/outrigger", "vars.TAP_REPOSITORY": "someone/homebrew-tap"}
            if expression.startswith(("secrets.", "vars.")):
                return known.get(expression, "")
            return known[expression]

        return re.sub(r"\$\{\{(.*?)\}\}", one, str(text))

    def may_run(self, name):
        needs, condition = self.needs(name), self.workflow["jobs"][name].get("if")
        if condition is None:
            return all(self.results[other] == "success" for other in needs)
        match = re.fullmatch(r"\$\{\{ !cancelled\(\) && needs\.(\w+)\.result == 'success' \}\}", condition)
        assert match and match.group(1) in needs, f"this program does not know the condition {condition}"
        return self.results[match.group(1)] == "success"

    def needs(self, name):
        needs = self.workflow["jobs"][name].get("needs", [])
        return needs if isinstance(needs, list) else [needs]

    def all(self):
        """Runs the jobs that have not succeeded, as `Re-run failed jobs` does: with all that depend on them."""
        again = {name for name, result in self.results.items() if result != "success"}
        while more := {name for name in self.results if name not in again and again & set(self.needs(name))}:
            again |= more
        for name in again:
            del self.results[name]
        for name in self.workflow["jobs"]:
            self.order(name)
        return self.results

    def order(self, name):
        if name in self.results:
            return
        job = self.workflow["jobs"][name]
        for other in self.needs(name):
            self.order(other)
        if name in GIVEN:
            self.results[name] = "success"
        elif not self.may_run(name):
            self.results[name] = "skipped"
        else:
            try:
                self.outputs[name] = self.job(name, job)
                self.results[name] = "success"
            except subprocess.CalledProcessError as error:
                self.results[name] = "failure"
                self.failure = error.stdout
                if self.registries.refused != name and name != "outcome":
                    print(f"{name}: {error.stdout}", file=sys.stderr)

    def job(self, name, job):
        work = pathlib.Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{name}-"))
        local = {}
        for step in job["steps"]:
            environment = {key: self.value(text, local) for key, text in {**(step.get("env") or {})}.items()}
            if "run" in step:
                local[step.get("id", "")] = self.run(work, step["run"], environment)
            else:
                self.action(work, step, local)
        return {key: self.value(text, local) for key, text in job.get("outputs", {}).items()}

    def action(self, work, step, local):
        uses = step["uses"].split("@")[0]
        given = {key: self.value(text, local) for key, text in (step.get("with") or {}).items()}
        if uses == "actions/checkout":
            git("clone", "--quiet", self.folder / "source", work / "clone")
            for path in (work / "clone").iterdir():
                shutil.move(path, work)
            # The clone has the tags, and a workflow of a tag begins there.
            git("-C", work, "checkout", "--quiet", "v" + self.version)
        elif uses == "actions/download-artifact":
            source = self.artifacts / given["name"] if "name" in given else self.artifacts
            shutil.copytree(source, work / given["path"], dirs_exist_ok=True)
        elif uses == "rust-lang/crates-io-auth-action":
            local[step["id"]] = {"token": "secret"}
        elif uses == "pypa/gh-action-pypi-publish":
            self.upload(work / given["packages-dir"], given["skip-existing"])
        else:
            assert uses in ("actions/setup-node", "actions/attest-build-provenance"), f"this program does not know {uses}"

    def upload(self, folder, skips_existing):
        """What the action does: uploads each file, and passes over those that are there."""
        wheels = sorted(folder.glob("*.whl"))
        assert wheels, "there are no wheels"
        for wheel in wheels:
            command = ["curl", "-sS", "-w", "%{http_code}", "-F", f"content=@{wheel}", f"{self.registries.url}/pypi/"]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            exists = "already exists" in answer and skips_existing == "True"
            if not answer.endswith("200") and not exists:
                raise subprocess.CalledProcessError(1, command, answer)

    def run(self, work, script, environment):
        outputs = self.folder / "step-outputs"
        outputs.write_text("")
        url = self.registries.url
        everything = {
            **{key: value for key, value in os.environ.items() if re.fullmatch("(?i).*_proxy|SSL_CERT_.*|RUSTUP_HOME|LANG", key)},
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(pathlib.Path.home() / ".rustup")),
            "CARGO_HOME": os.environ.get("CARGO_HOME", str(pathlib.Path.home() / ".cargo")),
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_REF_NAME": "v" + self.version,
            "GITHUB_ACTOR": "someone",
            "RUNNER_TEMP": str(work),
            # The ordinary clients take these registries in the place of the public ones.
            "CARGO_REGISTRIES_RELEASE_INDEX": f"sparse+{url}/cargo/",
            "CARGO_REGISTRIES_RELEASE_TOKEN": "secret",
            "CARGO_REGISTRY_DEFAULT": "release",
            "npm_config_userconfig": str(self.folder / "home/.npmrc"),
            # Only GitHub can say where a package was built.
            "PROVENANCE": "",
            "RELEASE_STATE": str(self.state),
            "RELEASE_REFUSED": self.registries.refused or "",
            **environment,
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        subprocess.run(command, cwd=work, env=everything, check=True, timeout=600, **pipes)
        return dict(line.split("=", 1) for line in outputs.read_text().splitlines())


AUTHOR = ("-c", "user.name=Release", "-c", "user.email=release@localhost")


def git(*arguments):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["git", *map(str, arguments)], check=True, **quiet)


def prepare(folder):
    """The source of the release: a commit that turns the texts, with its tag."""
    source = folder / "source"
    git("clone", "--quiet", ROOT, source)
    version = re.search('^version = "(.*)"$', (source / "Cargo.toml").read_text(), re.M).group(1)
    for _ in range(2):
        # The second time changes nothing.
        subprocess.run([ROOT / "packaging/turn.py", version, "2026-12-01", source], check=True, stdout=subprocess.DEVNULL)
    texts = (source / "README.md").read_text() + (source / "packaging/README.md").read_text() + (source / "docs/embedding.md").read_text()
    assert "first release" not in texts and f"uvx {NAMES['PYPI']} demo" in texts and 'version = "0.1"' in texts, "not turned"
    assert f"## {version} - 2026-12-01" in (source / "CHANGELOG.md").read_text(), "the changelog is not turned"
    git("-C", source, *AUTHOR, "commit", "--quiet", "--all", "-m", f"Release {version}")
    git("-C", source, "tag", f"v{version}")
    return version


def artifacts(folder):
    """What the jobs before `release` have left, from `.ci/run packages`."""
    target = folder / "binary-x86_64/dist"
    shutil.copytree(ROOT / "target/dist", target)
    shutil.copytree(ROOT / "target/packages", folder / "packages")
    (folder / "sbom").mkdir()
    (folder / "sbom/outrigger.cdx.json").write_text("{}")


def check_published(run, registries):
    version, state = run.version, run.state
    assert list(registries.crates) == [NAMES["CRATE"]] and list(registries.crates[NAMES["CRATE"]]) == [version]
    assert {NAMES["NPM"], f"{NAMES['NPM']}-linux-x64"} <= registries.npm.keys(), registries.npm.keys()
    assert any(name.startswith(NAMES["PYPI"].replace("-", "_")) for name in registries.wheels), registries.wheels
    images = set((state / "images").read_text().split())
    assert {f"{NAMES['IMAGE']}:{version}-{kind}" for kind in ("scratch", "debian")} <= images, images
    assert (state / "release").read_text() == "public\n"
    assert any(name.endswith(".deb") for name in os.listdir(state / "files")), os.listdir(state / "files")
    for repository, file in (("tap", f"Formula/{NAMES['BREW']}.rb"), ("aur", "PKGBUILD"), ("aur", ".SRCINFO")):
        git("--git-dir", run.folder / f"{repository}.git", "show", f"main:{file}")


def release(refused):
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = pathlib.Path(name)
        registries = Registries()
        registries.serve()
        version = prepare(folder)
        run = Run(folder, registries)
        run.version = version
        artifacts(run.artifacts)
        registries.refused = refused
        run.urls()
        first = dict(run.all())
        if refused:
            others = {job: result for job, result in first.items() if job not in (refused, "outcome")}
            # What is downloaded from the public release waits for it.
            waits = {"homebrew", "aur"} if refused == "github" else set()
            assert first[refused] == "failure", f"{refused}: {first}"
            assert {job for job, result in others.items() if result != "success"} == waits, f"{refused}: {first}"
            assert first["outcome"] == "failure" and f"not published: {refused}" in run.failure.replace("\n", " "), run.failure
            registries.refused = None
            run.urls()
            run.all()
        assert set(run.results.values()) == {"success"}, f"{refused}: {run.results}"
        check_published(run, registries)
        # Running everything once more changes nothing.
        run.results.clear()
        run.all()
        assert set(run.results.values()) == {"success"}, f"again: {run.results}"
        check_published(run, registries)
        registries.server.shutdown()
        what = f"{refused} refuses: the rest is published and the outcome names it; when it no longer does, all is" if refused else "nobody refuses"
        print(f"release_run: {what}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--refuse", choices=PUBLISHERS)
    options = parser.parse_args()
    for refused in [options.refuse] if options.refuse else [None, *PUBLISHERS]:
        release(refused)


if __name__ == "__main__":
    sys.exit(main())
