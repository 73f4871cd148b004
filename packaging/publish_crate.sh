#!/usr/bin/env bash
# Publishes the crate, unless the registry has this version already, so a run that failed can be repeated.
# Compiles nothing: the step `package` of .ci/run has built the crate from its package.
#
# usage: packaging/publish_crate.sh
set -euo pipefail
cd "$(dirname "$0")/.."
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
if cargo publish --locked --no-verify >"$answer" 2>&1; then
  echo "publish_crate: published"
elif grep -q "already exists\|already uploaded" "$answer"; then
  echo "publish_crate: this version is published already"
else
  cat "$answer" >&2
  exit 1
fi
