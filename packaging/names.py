#!/usr/bin/env python3
"""Checks the names of packaging/names: texts, manifests and recipes use no other, and in each registry a name is either free or
belongs to a package of ours. A package is ours if it names our repository.

usage: packaging/names.py

It asks the registries through their ordinary clients: cargo, pip, npm and, if there is one, apt-cache. If a registry cannot be
reached, it says that it did not check the name. It fails if a name belongs to somebody else.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = dict(line.split("=", 1) for line in (ROOT / "packaging/names").read_text().splitlines() if re.match("[A-Z]+=", line))
DEADLINE = 120
# What precedes the name of a package of ours in a text, and the key of the name.
INSTALLERS = {
    r"uvx (?:--\S+ )*": "PYPI",
    r"uv tool install ": "PYPI",
    r"pip install (?:-\S+ )*": "PYPI",
    r"npx (?:-\S+ )*": "NPM",
    r"npm install (?:-\S+ )*": "NPM",
    r"cargo (?:install|binstall|add) (?:--locked )?": "CRATE",
    r"brew install (?:\S+/)?": "BREW",
    r"docker (?:run|pull) (?:-\S+ )*": "IMAGE",
}
# Texts that are published with their packages.
PUBLISHED = ("packaging/npm/", "packaging/python/", "packaging/acp-conformance/", "packaging/npm-client/")
# What follows NPM and a hyphen: the packages for platforms, and those that are used alone.
PLATFORMS = ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64")
ALONE = ("acp-conformance", "client")


def tracked():
    """The text files of the project, with their texts."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if name in ("packaging/names.py", "Cargo.lock") or name.startswith("fuzz/corpus"):
            continue
        try:
            yield name, (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue


def check_texts():
    problems, found = [], 0
    is_released = "<!-- before the first release -->" not in (ROOT / "README.md").read_text()
    for file, text in tracked():
        if file.endswith(".md") and not is_released and not file.startswith(PUBLISHED):
            problems += check_promises(file, text)
        for number, line in enumerate(text.splitlines(), 1):
            for before, key in INSTALLERS.items():
                # Where a template is filled in, there is no other name.
                for name in re.findall(before + r"((?:ghcr\.io/)?@?outrigger[\w/-]*)", line):
                    found += 1
                    others = [f"{NAMES[key]}-{suffix}" for suffix in ALONE] if key == "NPM" else []
                    if name not in (NAMES[key], *others):
                        problems.append(f"{file}:{number}: '{name}' should be '{NAMES[key]}' ({key})")
    manifest = (ROOT / "Cargo.toml").read_text()
    for key, field in (("CRATE", "name"), ("REPOSITORY", "repository")):
        if (value := re.search(f'^{field} = "(.*)"$', manifest, re.M).group(1)) != NAMES[key]:
            problems.append(f"Cargo.toml: {field} is '{value}', and packaging/names has '{NAMES[key]}'")
    assert found, "the texts say nowhere how to install a package"
    return problems


def check_promises(file, text):
    """Before the first release, only a section that says so may tell how to install a package."""
    hidden = re.sub(r"^<!-- after the first release\n.*?^-->\n", lambda match: "\n" * match.group().count("\n"), text, flags=re.M | re.S)
    heading = ""
    for number, line in enumerate(hidden.splitlines(), 1):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        installs = any(re.search(before + "(ghcr.io/)?outrigger", line) for before in INSTALLERS)
        if installs and heading != "When it is released":
            yield f"{file}:{number}: tells to install what is not released: {line.strip()}"


def run(*command):
    """The outcome of a client, without the settings and the lock files of this folder."""
    environment = {**os.environ, "LC_ALL": "C", "CARGO_TERM_COLOR": "never", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE)


def crates():
    name = NAMES["CRATE"]
    asked = run("cargo", "info", "--registry", "crates-io", name)
    if f"could not find `{name}`" in asked.stderr:
        return {name: None}
    if asked.returncode:
        raise OSError(asked.stderr.strip())
    return {name: asked.stdout}


def pypi():
    name = NAMES["PYPI"]
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--ignore-installed", "--dry-run", "--only-binary", ":all:"]
        asked = run(sys.executable, "-m", "pip", "install", *options, "--report", str(report), name)
        if "No matching distribution found" in asked.stderr and "Retrying" not in asked.stderr:
            return {name: None}
        if asked.returncode:
            raise OSError(asked.stderr.strip())
        return {name: report.read_text()}


def npm():
    packages = [NAMES["NPM"], *(f"{NAMES['NPM']}-{suffix}" for suffix in PLATFORMS + ALONE)]
    answers = {}
    for name in packages:
        asked = run("npm", "view", name, "--json")
        if asked.returncode == 0:
            answers[name] = asked.stdout
        elif "E404" in asked.stdout + asked.stderr:
            answers[name] = None
        else:
            raise OSError(asked.stderr.strip())
    return answers


def debian():
    name = NAMES["DEB"]
    asked = run("apt-cache", "show", "--no-all-versions", name)
    if asked.returncode == 0 and asked.stdout.strip():
        return {name: asked.stdout}
    # Without lists of packages, nothing is known about any name.
    if run("apt-cache", "show", "bash").returncode:
        raise OSError("there are no lists of packages (apt-get update)")
    return {name: None}


def check_registry(registry, ask, program):
    """Problems with the names in one registry."""
    if not shutil.which(program):
        print(f"names: {registry}: not checked, there is no {program}")
        return []
    try:
        answers = ask()
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error).strip().splitlines() or ["no answer"]
        print(f"names: {registry}: not checked, it cannot be reached: {reason[-1][:200]}")
        return []
    problems = []
    for name, answer in answers.items():
        if answer is None:
            print(f"names: {registry}: '{name}' is free")
        elif NAMES["REPOSITORY"] in answer:
            print(f"names: {registry}: '{name}' is ours")
        else:
            problems.append(
                f"{registry}: the package '{name}' belongs to somebody else: it does not name {NAMES['REPOSITORY']}. "
                f"Choose another name in packaging/names."
            )
    return problems


def main():
    problems = check_texts()
    for registry in (("crates.io", crates, "cargo"), ("PyPI", pypi, "python3"), ("npm", npm, "npm"), ("Debian", debian, "apt-cache")):
        problems += check_registry(*registry)
    for problem in problems:
        print(f"names: {problem}", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
