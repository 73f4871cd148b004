#!/usr/bin/env bash
# Runs every fuzz target for a while, from the seed corpora.
#
# usage: fuzz/run.sh [SECONDS] [TARGET...]      20 seconds each, all targets by default
# Needs cargo-fuzz (`cargo install cargo-fuzz`). It is run with the nightly toolchain if there is one, otherwise with
# the present one told to allow the compiler flags it needs.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-20}
shift || true
targets=${*:-$(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' Cargo.toml)}
cargo=(cargo)
if cargo +nightly --version >/dev/null 2>&1; then cargo=(cargo +nightly); else export RUSTC_BOOTSTRAP=1; fi
python3 seeds.py
for target in $targets; do
  "${cargo[@]}" fuzz build "$target" >build.log 2>&1 || { cat build.log; exit 1; }
  rm -f build.log
  log=$("${cargo[@]}" fuzz run "$target" -- -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 2>&1) || {
    echo "$log" | tail -40
    exit 1
  }
  echo "fuzz $target: $(sed -n 's/stat::number_of_executed_units: *//p' <<<"$log") executions in ${seconds}s, no finding"
done
