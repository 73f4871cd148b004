#!/usr/bin/env python3
"""Prints the licenses of everything that is compiled into the program for a target: each crate with its license texts, and
xterm.js. Fails if a text is missing.

usage: packaging/licences.py TARGET        needs cargo-bundle-licenses, and web/dist (web/build.sh)
"""

import json
import pathlib
import subprocess
import sys
import tempfile

RULE = "=" * 78


def compiled(target):
    """The names and versions of the crates in the program."""
    command = ["cargo", "tree", "--locked", "--features", "web", "--edges", "normal", "--target", target, "--prefix", "none", "--format", "{p}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    crates = {tuple(line.split()[:2]) for line in lines if line}
    return {(name, version.removeprefix("v")) for name, version in crates if name != "outrigger"}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().splitlines()[-1])
    wanted = compiled(sys.argv[1])
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(
            ["cargo", "bundle-licenses", "--format", "json", "--output", file.name], check=True, stderr=subprocess.DEVNULL
        )
        found = json.load(file)["third_party_libraries"]
    crates = {(one["package_name"], one["package_version"]): one for one in found}
    if missing := sorted(wanted - crates.keys()):
        sys.exit(f"licenses: nothing is known about {missing}")
    print("Outrigger contains these packages, under the licenses that follow their names.")
    for key in sorted(wanted):
        crate = crates[key]
        texts = [one["text"].strip() for one in crate["licenses"]]
        # Of licenses to choose from, one is enough.
        texts = [text for text in texts if text and text != "NOT FOUND"]
        if not texts:
            sys.exit(f"licenses: no text for {' '.join(key)}, which is under {crate['license']}")
        print(f"\n{RULE}\n{' '.join(key)}    {crate['license']}\n{crate['repository'] or ''}\n")
        print("\n\n".join(texts))
    print(f"\n{RULE}")
    print(pathlib.Path("web/dist/LICENSES.txt").read_text())


main()
