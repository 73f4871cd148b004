#!/usr/bin/env python3
"""Repairs the links of the documents in a package, which contains only a part of the repository: a relative link to a file that is
not in the package becomes one to the repository, at the tag of the version. Fails if a link leads nowhere.

usage: packaging/links.py FOLDER [--check]      FOLDER has the layout of the repository; --check changes nothing
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\(|\]: |(?:src|href)=\")(?!https?:|mailto:|#)([^)\s\"#]+)")


def setting(file, pattern):
    return re.search(pattern, (ROOT / file).read_text(), re.M).group(1)


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(re.search("^usage: .*$", __doc__, re.M).group())
    folder, checks = pathlib.Path(sys.argv[1]).resolve(), len(sys.argv) == 3
    version = setting("Cargo.toml", '^version = "(.*)"$')
    repository = setting("packaging/names", "^REPOSITORY=(.*)$")
    count = 0
    for document in sorted(folder.rglob("*.md")):
        place = document.relative_to(folder).parent

        def repaired(match):
            nonlocal count
            count += 1
            before, link = match.groups()
            if (document.parent / link).exists():
                return match.group()
            target = (ROOT / place / link).resolve()
            if checks or not target.exists() or not target.is_relative_to(ROOT):
                sys.exit(f"links: {document}: there is no {link}")
            kind = "tree" if target.is_dir() else "blob"
            return f"{before}{repository}/{kind}/v{version}/{target.relative_to(ROOT).as_posix()}"

        text = document.read_text()
        changed = LINK.sub(repaired, text)
        if changed != text:
            document.write_text(changed)
    if not count:
        sys.exit(f"links: {folder} has no links")
    print(f"links: {count} links in {folder.name} lead somewhere")


main()
