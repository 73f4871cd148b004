#!/bin/sh
# @PYPI@ is another name of @PROGRAM@, so that `uvx @PYPI@` finds it. The installer puts both into the same folder.
exec "$(dirname "$(readlink -f "$0")")/@PROGRAM@" "$@"
