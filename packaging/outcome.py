#!/usr/bin/env python3
"""Prints the outcome of each job of a release, and fails if one did not succeed. The others are not affected: run the failed jobs
again when their cause is mended.

usage: NEEDS=JSON packaging/outcome.py      JSON is the context `needs` of the workflow: {"pypi": {"result": "failure"}, ...}
"""

import json
import os
import sys

WHAT = {
    "crates-io": "the crate on crates.io",
    "pypi": "the wheels on PyPI",
    "npm": "the packages on npm",
    "ghcr": "the container images",
    "github": "the release on GitHub, public",
    "homebrew": "the formula in the tap",
    "aur": "the package in the AUR",
}


def main():
    needs = json.loads(os.environ["NEEDS"])
    lines = ["| job | publishes | result |", "|---|---|---|"]
    failed = []
    for job, what in WHAT.items():
        result = needs[job]["result"]
        lines.append(f"| {job} | {what} | {result} |")
        if result != "success":
            failed.append(job)
    text = "\n".join(lines)
    print(text)
    # GitHub shows this file on the page of the run.
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a") as file:
            file.write(text + "\n")
    if failed:
        sys.exit(f"outcome: not published: {', '.join(failed)}. The rest is. Run the failed jobs again when the cause is mended.")
    print("outcome: everything is published")


main()
