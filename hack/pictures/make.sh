#!/usr/bin/env bash
# Draws every picture of the book, docs/images/*.svg. `make pictures` runs it.
#   make.sh          draw the pictures
#   make.sh record   record the queries of the dashboard during a soak, into docs/images/src/dashboard.json
#   make.sh pages    take screenshots of every page of the book, into target/pages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

for tool in node npm; do
  command -v "$tool" >/dev/null || { echo "$tool: not found; install Node.js 20 or newer" >&2; exit 1; }
done
# The tools of the lock file, once. None of their own scripts runs.
if ! cmp -s package-lock.json node_modules/.installed; then
  npm ci --ignore-scripts --no-audit --no-fund >&2
  cp package-lock.json node_modules/.installed
fi

case ${1:-} in
  '') node diagrams.mjs && node terminals.mjs && node curves.mjs && node dashboard.mjs ;;
  record) exec node record.mjs ;;
  pages) node pages.mjs ;;
  *)
    echo "make.sh $1: write make.sh, make.sh record, or make.sh pages" >&2
    exit 2
    ;;
esac
