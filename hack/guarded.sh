#!/usr/bin/env bash
# Exits with 1 while there are resources with a finalizer of the operator's: what they have made outside of their own namespace
# is not cleaned up yet, and once the operator is gone nobody will, nor will they ever go. Says which, and how to get out of it.
# Usage: guarded.sh WHAT_WAS_ASKED_FOR KUBECTL...
set -euo pipefail
asked=$1
kubectl=("${@:2}")
kinds=(configmapsyncs.apps.bixbite.io myingresses.demo.rtfm.co.ua)

there=$("${kubectl[@]}" get customresourcedefinitions --ignore-not-found -o name "${kinds[@]}")
guarded=''
for crd in $there; do
  kind=${crd#*/}
  # shellcheck disable=SC2016 # the template's own variables
  guarded+=$("${kubectl[@]}" get "$kind" --all-namespaces -o go-template='{{range $it := .items}}{{range $name := .metadata.finalizers}}'"$kind"' {{$it.metadata.namespace}} {{$it.metadata.name}} {{$name}}{{"\n"}}{{end}}{{end}}' |
    { grep -F ' quartermaster.dev/' || true; })$'\n'
done
guarded=$(grep . <<<"$guarded" || true)
[ -n "$guarded" ] || exit 0

{
  echo "$asked: refused. These have things outside of their own namespace, which only the running operator removes:"
  while read -r kind namespace name finalizer; do
    echo "  $kind $namespace/$name (finalizer $finalizer)"
  done <<<"$guarded"
  echo "Have all of them deleted while it runs, and then try again:"
  echo "  quartermaster uninstall"
} >&2
exit 1
