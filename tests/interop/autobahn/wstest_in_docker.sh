#!/usr/bin/env bash
# The Autobahn test suite's command `wstest`, in the suite's container. For machines with Docker and without Python 2, on which
# the suite depends. Copy it to a folder in PATH under the name wstest, or name it in WSTEST.
#
# usage: tests/interop/autobahn/wstest_in_docker.sh ARGUMENT...
set -euo pipefail
image=${AUTOBAHN_IMAGE:-crossbario/autobahn-testsuite:25.10.1@sha256:519915fb568b04c9383f70a1c405ae3ff44ab9e35835b085239c258b6fac3074}
temporary=${TMPDIR:-/tmp}
volumes=(--volume "$temporary:$temporary")
[ "$PWD" = "$temporary" ] || volumes+=(--volume "$PWD:$PWD")
# It talks to servers on 127.0.0.1, and writes its reports as the user who runs it. Specifications and reports are below the
# working folder or below the folder for temporary files.
exec docker run --rm --init --network host --user "$(id -u):$(id -g)" --env HOME=/tmp --workdir "$PWD" "${volumes[@]}" \
  "$image" wstest "$@"
