#!/usr/bin/env bash
# Builds the control plane that tests and the demo run (etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
# kubectl, kwok) from the Go modules beside this file, once for each set of go.sum files, into a cache outside the work
# tree. Progress goes to standard error; the folder with the binaries is the one line on standard output.
# If KUBEBUILDER_ASSETS is set, the script uses the binaries of that folder and builds nothing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
binaries=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok)
stages=kwok-stages.yaml

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  for name in "${binaries[@]}" "$stages"; do
    [ -e "$KUBEBUILDER_ASSETS/$name" ] && continue
    echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no $name: add it, or unset KUBEBUILDER_ASSETS to build all of them" >&2
    exit 1
  done
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

key=$(cat "$here"/{k8s,etcd,kwok}/go.{mod,sum} "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
out="${XDG_CACHE_HOME:-$HOME/.cache}/quartermaster/controlplane/$key"
if [ -e "$out/complete" ]; then
  echo "$out"
  exit 0
fi

mkdir -p "$out"
exec 9>"$out/.lock"
flock 9 # two commands that start together build once
if [ ! -e "$out/complete" ]; then
  echo "Building the control plane (once: about 6 minutes on 2 cores, 4 GB of Go build cache, 0.4 GB of binaries in $out)" >&2
  version=$(cd "$here/k8s" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
  IFS=. read -r major minor _ <<<"${version#v}"
  stamp="-s -w"
  for v in "gitVersion=$version" "gitMajor=$major" "gitMinor=$minor"; do stamp+=" -X k8s.io/component-base/version.$v"; done
  export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=
  build() { # folder package name
    [ -e "$out/$3" ] && return
    local began=$SECONDS
    (cd "$here/$1" && go build -trimpath -buildvcs=false -ldflags "$stamp" -o "$out/$3.part" "$2" >&2)
    mv "$out/$3.part" "$out/$3"
    echo "  $3 ($((SECONDS - began)) s)" >&2
  }
  build k8s k8s.io/kubernetes/cmd/kubectl kubectl
  build etcd go.etcd.io/etcd/server/v3 etcd
  build k8s k8s.io/kubernetes/cmd/kube-apiserver kube-apiserver
  build k8s k8s.io/kubernetes/cmd/kube-controller-manager kube-controller-manager
  build k8s k8s.io/kubernetes/cmd/kube-scheduler kube-scheduler
  build kwok sigs.k8s.io/kwok/cmd/kwok kwok
  # kwok refuses to start without stage definitions; its module carries ready ones.
  module=$(cd "$here/kwok" && go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
  for file in "$module"/kustomize/stage/{node,pod}/fast/*.yaml; do
    case $file in */kustomization.yaml) ;; *) echo '---' && cat "$file" ;; esac
  done >"$out/$stages"
  touch "$out/complete"
fi
echo "$out"
