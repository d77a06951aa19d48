#!/usr/bin/env bash
# Builds a tool that tests and people use (helm, promtool) from the Go module of its name beside this file, once for each go.sum, into a
# cache outside the work tree. Progress goes to standard error; the program's path is the one line on standard output.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tool=${1:?which tool: a folder beside this file}
[ -e "$here/$tool/go.mod" ] || { echo "there is no tool $tool: $(cd "$here" && echo */ | tr -d /)" >&2; exit 1; }

key=$(cat "$here/$tool"/go.{mod,sum} "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
out="${XDG_CACHE_HOME:-$HOME/.cache}/quartermaster/tools/$tool-$key"
mkdir -p "$out"
exec 9>"$out/.lock"
flock 9 # two commands that start together build once
if [ ! -e "$out/$tool" ]; then
  echo "Building $tool (once, into $out)" >&2
  began=$SECONDS
  export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=
  cd "$here/$tool"
  package=$(go list tool)
  version=$(go list -f '{{.Module.Version}}' "$package")
  tags=''
  # Rules are checked without finding targets in clouds, whose SDKs take minutes to build.
  [ "$tool" != promtool ] || tags=remove_all_sd
  go build -trimpath -buildvcs=false -tags "$tags" -ldflags "-s -w -X $(go list -f '{{.Module.Path}}' "$package")/internal/version.version=$version" \
    -o "$out/$tool.part" "$package" >&2
  mv "$out/$tool.part" "$out/$tool"
  echo "  $tool $version ($((SECONDS - began)) s)" >&2
fi
echo "$out/$tool"
