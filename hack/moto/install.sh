#!/usr/bin/env bash
# Installs moto, which stands in for AWS in tests and the demo, into a venv of its own, once for each set of
# requirements and each Python, in a cache outside the work tree. Progress goes to standard error; the folder of the venv
# is the one line on standard output. pip's configuration names the package index.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

python=$(python3 -c 'import sys; print(sys.executable, sys.version)')
key=$({ cat "$here/requirements.txt" "${BASH_SOURCE[0]}" && echo "$python"; } | sha256sum | cut -c1-16)
out="${XDG_CACHE_HOME:-$HOME/.cache}/quartermaster/moto/$key"
if [ -e "$out/complete" ]; then
  echo "$out/venv"
  exit 0
fi

mkdir -p "$out"
exec 9>"$out/.lock"
flock 9 # two commands that start together install once
if [ ! -e "$out/complete" ]; then
  began=$SECONDS
  echo "Installing moto (once: less than a minute, 140 MB in $out)" >&2
  python3 -m venv --clear "$out/venv" >&2
  # Wheels only: pip compiles nothing, and runs no package's setup script.
  "$out/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: --no-deps \
    --require-hashes -r "$here/requirements.txt" >&2
  touch "$out/complete"
  echo "  moto ($((SECONDS - began)) s)" >&2
fi
echo "$out/venv"
