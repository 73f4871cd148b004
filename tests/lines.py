#!/usr/bin/env python3
"""Counts the lines of product code in each area of the source.

usage: tests/lines.py [ROOT] [--most N]

A line of product code is neither blank nor a comment, and belongs to `src` or build.rs. Modules that only tests, fuzzing or the
simulation use do not count: those behind `#[cfg(test)]`, `#[cfg(fuzzing)]` or a combination of them. An area is a folder of `src`,
`src/service` or `src/server`; the files beside these folders are one area. With --most, the script fails if the total is over N.
"""

import argparse
import collections
import pathlib
import re
import sys

DIVIDED = ("src/service", "src/server", "src")
TEST_ATTRIBUTE = re.compile(r"#\[cfg\(.*\b(test|fuzzing)\b")
MODULE = re.compile(r"(?:pub(?:\([^)]*\))? )?mod (\w+)(;| \{)$")


def read(file, exclude):
    """Returns the number of lines of product code in `file`. Calls `exclude` with the name of each module in a file of its own that
    is not part of the product."""
    count = 0
    closing = None  # the line that ends the test module that this line is in
    attributes = None  # the number of lines of the attributes above this line, if one of them is a test attribute
    for line in file.read_text().splitlines():
        if closing is not None:
            closing = None if line.rstrip() == closing else closing
            continue
        stripped = line.strip()
        if not stripped or stripped.startswith("//"):
            continue
        module = MODULE.match(stripped)
        if attributes is not None and module:
            count -= attributes
            attributes = None
            if module[2] == ";":
                exclude(module[1])
            else:
                closing = line[: len(line) - len(line.lstrip())] + "}"
            continue
        if stripped.startswith("#[") and (attributes is not None or TEST_ATTRIBUTE.match(stripped)):
            attributes = (attributes or 0) + 1
        else:
            attributes = None
        count += 1
    return count


def count_product(root):
    """Returns the number of lines of product code for each file, by its path relative to `root`."""
    lines, excluded = {}, set()
    for file in sorted((root / "src").rglob("*.rs")) + [root / "build.rs"]:
        folder = file.parent if file.name in ("mod.rs", "lib.rs", "main.rs") else file.with_suffix("")
        lines[file] = read(file, lambda name, folder=folder: excluded.update((folder / name, (folder / name).with_suffix(".rs"))))
    return {
        file.relative_to(root): count
        for file, count in lines.items()
        if file not in excluded and not excluded.intersection(file.parents)
    }


def area(path):
    for folder in DIVIDED:
        if pathlib.PurePath(folder) in path.parents:
            rest = path.relative_to(folder).parts
            return f"{folder}/{rest[0]}" if len(rest) > 1 else f"{folder}/*.rs"
    return str(path)


def main():
    parser = argparse.ArgumentParser(description="Counts the lines of product code in each area of the source.")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--most", type=int, help="fail if there are more lines")
    arguments = parser.parse_args()
    areas = collections.Counter()
    for path, count in count_product(arguments.root).items():
        areas[area(path)] += count
    for name, count in sorted(areas.items()):
        print(f"{count:7,} {name}")
    total = sum(areas.values())
    print(f"{total:7,} lines of product code")
    if arguments.most is not None and total > arguments.most:
        sys.exit(f"lines: {total:,} lines of product code are over the budget of {arguments.most:,}")


if __name__ == "__main__":
    main()
