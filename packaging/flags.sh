# shellcheck shell=bash
# The flags of the compiler for a target of binary.sh. To be read by a shell: . packaging/flags.sh TARGET
#
# Sets `triple`, the target that rustc knows, and exports RUSTFLAGS.
triple=${1%-static}
# The paths of this machine do not belong into the program.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/outrigger --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
[ "$triple" = "$1" ] || RUSTFLAGS="$RUSTFLAGS -C target-feature=+crt-static"
export RUSTFLAGS
