#!/usr/bin/env python3
"""Turns the texts from "not released yet" to "released", as the first step of a release: what says that there are no packages goes,
and what says how to install them appears. Does nothing if the texts are turned already. The changelog gets the version and the date.

usage: packaging/turn.py VERSION [DATE] [FOLDER]      for example 0.1.0 2026-12-01; FOLDER is a copy of the repository

In a document, these lines mark what changes:

    <!-- before the first release -->     what follows is removed, up to
    <!-- end -->
    <!-- after the first release          what follows appears, up to
    -->

A dependency on the repository becomes one on the version.
"""

import datetime
import pathlib
import re
import subprocess
import sys

BEFORE = re.compile(r"^<!-- before the first release -->\n(.*?)^<!-- end -->\n", re.M | re.S)
AFTER = re.compile(r"^<!-- after the first release\n(.*?)^-->\n", re.M | re.S)


def turned(text, version, repository):
    """A text after the release."""
    text = BEFORE.sub("", text)
    text = AFTER.sub(r"\1", text)
    minor = ".".join(version.split(".")[:2])
    return text.replace(f'outrigger = {{ git = "{repository}"', f'outrigger = {{ version = "{minor}"')


def main():
    if not 2 <= len(sys.argv) <= 4 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit(re.search("^usage: .*$", __doc__, re.M).group())
    version = sys.argv[1]
    date = sys.argv[2] if len(sys.argv) > 2 else datetime.date.today().isoformat()
    root = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else pathlib.Path(__file__).resolve().parent.parent)
    repository = re.search("^REPOSITORY=(.*)$", (root / "packaging/names").read_text(), re.M).group(1)
    files = subprocess.run(["git", "ls-files", "*.md", "src/lib.rs"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        text = (root / name).read_text()
        changed = turned(text, version, repository)
        if name == "CHANGELOG.md":
            changed = re.sub(r"^## Unreleased$", f"## {version} - {date}", changed, flags=re.M)
        if changed != text:
            (root / name).write_text(changed)
            print(f"turn: {name}")


if __name__ == "__main__":
    main()
