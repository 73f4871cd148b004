#!/usr/bin/env bash
# Checks that the library's API has not changed since the last release in a way that its new version forbids.
#
# usage: packaging/semver.sh [REVISION]      REVISION is by default the last tag v*
#
# Installs cargo-semver-checks, which takes long to build, if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
revision=${1:-$(git describe --tags --abbrev=0 --match 'v*' 'HEAD^' 2>/dev/null || true)}
if [ -z "$revision" ]; then
  echo "semver: no version has been released, so there is nothing to compare with"
  exit 0
fi
command -v cargo-semver-checks >/dev/null || cargo install --quiet --locked cargo-semver-checks
echo "semver: compared with $revision"
# The feature `web` is left out: it needs files from npm, and it adds nothing to the API.
cargo semver-checks --default-features --baseline-rev "$revision"
