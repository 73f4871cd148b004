#!/usr/bin/env bash
# Runs fuzz targets from their seed corpora. Ends at the first finding.
#
# usage: fuzz/run.sh [SECONDS] [TARGET...]      20 seconds for each target, and all targets, by default
#
# Needs cargo-fuzz (`cargo install --locked cargo-fuzz`). Uses the nightly toolchain if it is installed. Otherwise
# RUSTC_BOOTSTRAP lets the default toolchain accept the compiler flags that cargo-fuzz passes.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-20}
shift || true
targets=${*:-$(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' Cargo.toml)}
cargo=(cargo)
if cargo +nightly --version >/dev/null 2>&1; then cargo=(cargo +nightly); else export RUSTC_BOOTSTRAP=1; fi
# cargo-fuzz has no --locked.
cargo metadata --locked --format-version 1 >/dev/null
python3 seeds.py
run() {
  local log
  log=$("${@:3}" fuzz run "$1" -- -max_total_time="$2" -max_len=4096 -print_final_stats=1 2>&1) || {
    echo "fuzz $1:"
    tail -40 <<<"$log"
    # xargs starts no other target after this status.
    exit 255
  }
  echo "fuzz $1: $(sed -n 's/stat::number_of_executed_units: *//p' <<<"$log") executions in ${2}s, no finding"
}
export -f run
for target in $targets; do
  "${cargo[@]}" fuzz build "$target" >build.log 2>&1 || { cat build.log; exit 1; }
  rm -f build.log
done
# One target for each processor at a time.
xargs -P "$(nproc)" -I '{}' bash -euo pipefail -c 'run "$@"' run '{}' "$seconds" "${cargo[@]}" <<<"${targets// /$'\n'}"
