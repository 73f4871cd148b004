#!/usr/bin/env bash
# Runs fuzz targets from their seed corpora, one for each processor at a time, and says the result of each in one line. Without TARGET,
# also runs all rounds of the unit tests in src/fuzz, of which `cargo test` runs a fifth. Fails at the end if anything has failed.
#
# usage: fuzz/run.sh [--smoke] [SECONDS] [TARGET...]      20 seconds for each target, and all targets, by default
#
# --smoke runs the targets alone, neither optimized nor with the address sanitizer. So they compile in two minutes instead of eight, and
# are about as fast.
#
# The input of a failure stays in fuzz/artifacts/TARGET, and the whole output in fuzz/artifacts/TARGET.log.
#
# Needs cargo-fuzz (`cargo install --locked cargo-fuzz`). Uses the nightly toolchain if it is installed. Otherwise
# RUSTC_BOOTSTRAP lets the default toolchain accept the compiler flags that cargo-fuzz passes.
set -euo pipefail
cd "$(dirname "$0")"
smoke=''
if [ "${1:-}" = --smoke ]; then
  smoke=1
  shift
fi
seconds=${1:-20}
shift || true
status=0
if [ $# = 0 ] && [ ! "$smoke" ]; then
  (cd .. && OUTRIGGER_ALL_ROUNDS=1 cargo test --locked --quiet --lib fuzz::) || status=1
fi
targets=${*:-$(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' Cargo.toml)}
cargo=(cargo)
if cargo +nightly --version >/dev/null 2>&1; then cargo=(cargo +nightly); else export RUSTC_BOOTSTRAP=1; fi
# cargo-fuzz has no --locked.
cargo metadata --locked --format-version 1 >/dev/null
python3 seeds.py
# It builds one target or all of them.
only=()
if [ $# = 1 ]; then only=("$1"); fi
profile=(--codegen-units 16)
folder=release
if [ "$smoke" ]; then
  profile=(--dev --sanitizer none)
  folder=debug
fi
"${cargo[@]}" fuzz build "${profile[@]}" "${only[@]}" >build.log 2>&1 || { cat build.log; exit 1; }
rm -f build.log
host=$("${cargo[@]}" -vV | sed -n 's/^host: //p')

# The target's binary is started directly, because each `cargo fuzz run` would build it again.
# shellcheck disable=SC2317 # xargs calls it
run() {
  local target=$1 seconds=$2 binary=$3/$1 log=artifacts/$1.log runs
  mkdir -p "artifacts/$target" "corpus/$target"
  # As `cargo fuzz run` sets it.
  if ASAN_OPTIONS=detect_odr_violation=0 "$binary" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" -max_len=4096 \
    -print_final_stats=1 "corpus/$target" >"$log" 2>&1; then
    runs=$(sed -n 's/stat::number_of_executed_units: *//p' "$log")
    rm "$log"
    echo "fuzz $target: ok, $runs runs in ${seconds}s"
    return
  fi
  # What has failed: the message of the panic or of the sanitizer, without the stack.
  {
    echo "fuzz $target: FAILED, input: $(sed -n 's|.*Test unit written to |fuzz/|p' "$log" | tail -1), output: fuzz/$log"
    sed -n '/panicked at/,/^stack backtrace:\|^note: \|^==/p; /ERROR: /p; /^SUMMARY/p' "$log" | cut -c 1-1000 | head -40 | sed 's/^/    /'
  } >"$log.summary"
  cat "$log.summary"
  rm "$log.summary"
  # xargs starts the others in any case, and fails at the end.
  return 1
}
export -f run
# shellcheck disable=SC2016 # the inner shell expands it
xargs -P "$(nproc)" -I '{}' bash -euo pipefail -c 'run "$@"' run '{}' "$seconds" "target/$host/$folder" <<<"${targets// /$'\n'}" || status=1
exit "$status"
