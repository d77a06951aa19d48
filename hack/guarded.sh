#!/usr/bin/env bash
# Exits with 1 while resources have a finalizer of the operator: only a running operator removes their load balancers and
# copies, and then the finalizer. Prints them, and the command to run first.
# Usage: guarded.sh COMMAND KUBECTL...
set -euo pipefail
asked=$1
kubectl=("${@:2}")
kinds=(configmapsyncs.apps.bixbite.io myingresses.demo.rtfm.co.ua)

there=$("${kubectl[@]}" get customresourcedefinitions --ignore-not-found -o name "${kinds[@]}")
guarded=''
for crd in $there; do
  kind=${crd#*/}
  # shellcheck disable=SC2016 # variables of the template
  guarded+=$("${kubectl[@]}" get "$kind" --all-namespaces -o go-template='{{range $it := .items}}{{range $name := .metadata.finalizers}}'"$kind"' {{$it.metadata.namespace}} {{$it.metadata.name}} {{$name}}{{"\n"}}{{end}}{{end}}' |
    { grep -F ' quartermaster.dev/' || true; })$'\n'
done
guarded=$(grep . <<<"$guarded" || true)
[ -n "$guarded" ] || exit 0

{
  echo "$asked: refused. Only the running operator can remove the load balancers and copies of these resources:"
  while read -r kind namespace name finalizer; do
    echo "  $kind $namespace/$name (finalizer $finalizer)"
  done <<<"$guarded"
  echo "Delete them while the operator runs, and then try again:"
  echo "  quartermaster uninstall"
} >&2
exit 1
