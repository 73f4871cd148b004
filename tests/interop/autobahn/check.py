#!/usr/bin/env python3
"""Checks the results in an Autobahn report. usage: check.py INDEX.json [--partial]"""

import collections
import json
import sys

# Cases whose result is only informational. Every other case must be OK.
INFORMATIONAL = {"7.1.6", "7.13.1", "7.13.2"}
# The number of cases in groups 1 to 7, 9 and 10. A report with fewer is incomplete.
TOTAL = 301

results = next(iter(json.load(open(sys.argv[1])).values()))
wrong = []
for case, result in results.items():
    want = "INFORMATIONAL" if case in INFORMATIONAL else "OK"
    if result["behavior"] != want or result["behaviorClose"] != want:
        wrong.append(f"case {case}: {result['behavior']}, close {result['behaviorClose']}, expected {want}")
if len(results) != TOTAL and "--partial" not in sys.argv:
    wrong.append(f"{len(results)} cases ran, expected {TOTAL}")
print("\n".join(wrong), end="\n" if wrong else "")
counts = collections.Counter(result["behavior"] for result in results.values())
print("autobahn:", ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
sys.exit(bool(wrong))
