#!/usr/bin/env bash
# Installs the npm packages that package-lock.json names, and copies their published modules and style sheets to web/dist,
# from where the cargo feature `web` compresses them into the program. Runs no script of a package.
#
# usage: web/build.sh
set -euo pipefail
cd "$(dirname "$0")"

command -v npm >/dev/null || {
  echo "web/build.sh: npm is missing; install Node.js 20 or later, which includes it" >&2
  exit 1
}
# A file that changes in this folder makes cargo compile the crate again, in every profile and with every set of features.
made_from=$(cat package-lock.json build.sh)
if [ -d dist ] && [ "$(cat node_modules/.made-from 2>/dev/null)" = "$made_from" ]; then exit; fi
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null

rm -rf dist.new
mkdir dist.new
# $1: the published file, $2: another name for it. Its source map is not served, so the comment that names it is left out.
take() {
  sed 's,^//# sourceMappingURL=.*$,,' "node_modules/$1" >"dist.new/${2:-$(basename "$1")}"
}
take @xterm/xterm/lib/xterm.mjs
take @xterm/xterm/css/xterm.css
for addon in fit search serialize unicode-graphemes web-links webgl; do
  take "@xterm/addon-$addon/lib/addon-$addon.mjs"
done
take marked/lib/marked.esm.js marked.js

# The notices at the top of each module, and the package's LICENSE. One package has no such file.
{
  echo "The pages contain these npm packages, all under the MIT license."
  for package in node_modules/@xterm/*/ node_modules/marked/; do
    name=$(basename "$package")
    printf '\n%s\n%s %s\n\n' "$(printf '=%.0s' {1..78})" "$(sed -n 's/^  "name": "\(.*\)",$/\1/p' "$package/package.json")" \
      "$(sed -n 's/^  "version": "\(.*\)",$/\1/p' "$package/package.json")"
    sed '/^\/\?[ *]/!q' dist.new/"$name".*js | grep '^/\?[ *]'
    echo
    if [ -f "$package/LICENSE" ]; then cat "$package/LICENSE"; elif [ -f "$package/LICENSE.md" ]; then cat "$package/LICENSE.md"; else echo "The license is that of @xterm/xterm below."; fi
  done
} >dist.new/LICENSES.txt
rm -rf dist
mv dist.new dist
echo "$made_from" >node_modules/.made-from
