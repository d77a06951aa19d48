#!/usr/bin/env bash
# Builds the Dockerfile without a container engine or an image registry, and runs the image as its user, on a read-only root,
# against a control plane of the testbed, until the operator is ready. Needs root, buildah and debootstrap.
#
# The two base images are stand-ins of the same names, made from Debian's packages and this machine's Rust. The test therefore
# covers the Dockerfile on this machine's architecture, but no other architecture and not the real base images. The program is
# not optimised here, because that takes most of the time and does not change what the test checks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing=''
[ "$(id -u)" = 0 ] || missing+=' root (it makes root file systems)'
for program in buildah debootstrap curl; do
  command -v "$program" >/dev/null || missing+=" $program (apt-get install $program)"
done
if [ -n "$missing" ]; then
  echo "make test-image is missing:$missing" >&2
  exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/quartermaster-image-XXXXXX")
cluster='' operator=''
finish() {
  local status=$?
  trap - EXIT
  set +e
  [ "$status" = 0 ] || tail -n 20 "$work"/*.log >&2 2>/dev/null
  [ -z "$operator" ] || { kill -KILL "$operator" && wait "$operator"; } 2>/dev/null
  [ -z "$cluster" ] || { kill "$cluster" && wait "$cluster"; } 2>/dev/null
  # debootstrap mounts /proc there; an interrupted run may have left it mounted, and its files must not be deleted.
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step() { echo "--- $* ($SECONDS s)" >&2; }
buildah() { command buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }

# This machine's sources of Debian packages.
debian=bookworm
# shellcheck disable=SC2016 # apt-get expands it
mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' | awk -v debian="$debian" '$2 == debian {print $1; exit}')

# stand_in FOLDER NAME [SETTING...]: makes an image of that name from the folder.
stand_in() {
  local container
  container=$(buildah from scratch)
  buildah copy --quiet "$container" "$1" / >/dev/null
  buildah config "${@:3}" "$container"
  buildah commit --quiet "$container" "$2" >/dev/null
  buildah rm "$container" >/dev/null
  rm -rf --one-file-system "$1"
}

# No stand-in has the digest of the real one.
dockerfile=$work/Dockerfile
sed '/^FROM /s/@sha256:[0-9a-f]*//' Dockerfile >"$dockerfile"
base() { sed -n 's/^FROM \(--platform=[^ ]* \)\?\([^ ]*\).*/\2/p' "$dockerfile" | sed -n "$1p"; }

step "the stand-in for $(base 1): debootstrap, and this machine's Rust"
debootstrap --variant=minbase --include=gcc,libc6-dev,ca-certificates "$debian" "$work/builder" ${mirror:+"$mirror"} >"$work/debootstrap.log"
rm -rf "$work"/builder/var/cache/apt "$work"/builder/var/lib/apt/lists
mkdir -p "$work/builder/usr/local/rust"
tar -C "$(rustc --print sysroot)" --exclude=./share -cf - . | tar -C "$work/builder/usr/local/rust" -xf -
stand_in "$work/builder" "$(base 1)" --env CARGO_HOME=/usr/local/cargo --env PATH=/usr/local/rust/bin:/usr/bin:/bin \
  --env CARGO_PROFILE_RELEASE_OPT_LEVEL=0 --env CARGO_PROFILE_RELEASE_LTO=off --env CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

step "the stand-in for $(base 2): its files out of their packages"
mkdir -p "$work/packages" "$work/final"/{etc/ssl/certs,tmp,proc,dev}
chmod 1777 "$work/final/tmp"
(cd "$work/packages" && apt-get download libc6 libgcc-s1 ca-certificates >"$work/packages.log" 2>&1)
for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/final"; done
find "$work/final/usr/share/ca-certificates" -name '*.crt' -exec cat {} + >"$work/final/etc/ssl/certs/ca-certificates.crt"
stand_in "$work/final" "$(base 2)" --user 65532 --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt

# cargo's downloads are reused.
cargo=${CARGO_HOME:-$HOME/.cargo}
mkdir -p "$cargo/registry"
volumes=(--volume "$cargo/registry:/usr/local/cargo/registry")
[ ! -e "$cargo/config.toml" ] || volumes+=(--volume "$cargo/config.toml:/usr/local/cargo/config.toml:ro")

step 'the image'
buildah build --isolation chroot --pull-never --network host "${volumes[@]}" --file "$dockerfile" --tag quartermaster:test \
  . >"$work/build.log" 2>&1

step 'a control plane, and what the operator needs there'
cargo build --quiet -p testbed
testbed=$(cargo metadata --no-deps --format-version 1 | jq -r .target_directory)/debug/testbed
"$testbed" cluster --kubeconfig-out "$work/admin.kubeconfig" >"$work/cluster.log" 2>&1 &
cluster=$!
for ((tries = 0; tries < 1200; tries++)); do
  [ ! -s "$work/admin.kubeconfig" ] || break
  kill -0 "$cluster"
  sleep 0.1
done
binaries=$(bash hack/controlplane/build.sh)
"$binaries/kubectl" --kubeconfig "$work/admin.kubeconfig" apply -k config/local >"$work/apply.log"
mkdir -p "$work/given"
"$testbed" service-account-kubeconfig quartermaster-system quartermaster-controller-manager \
  --kubeconfig "$work/admin.kubeconfig" --out "$work/given/kubeconfig"
chown -R 65532:65532 "$work/given"

step 'the image runs'
container=$(buildah from --pull-never quartermaster:test)
root=$(buildah mount "$container")
setting() { buildah inspect --type image --format "{{$1}}" quartermaster:test; }
user=$(setting .OCIv1.Config.User)
entrypoint=$(setting 'index .OCIv1.Config.Entrypoint 0')
licence=$(setting 'index .OCIv1.Config.Labels "org.opencontainers.image.licenses"')
[ "$licence" = Apache-2.0 ] && [ -s "$root/LICENSE" ] || { echo 'the image lacks the licence' >&2; exit 1; }
[ "$user" = 65532:65532 ] || { echo "the user of the image is $user, not 65532:65532" >&2; exit 1; }
# shellcheck disable=SC2016 # the other shell expands it
unshare --mount --pid --fork --kill-child bash -euc '
  root=$1 user=$2
  mount --make-rprivate /
  mount --bind "$root" "$root"
  mount --bind "$3" "$root/tmp"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -o remount,ro,bind "$root"
  if touch "$root/written" 2>/dev/null; then echo "the root file system is writable" >&2; exit 1; fi
  exec env -i KUBECONFIG=/tmp/kubeconfig SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    "$(command -v chroot)" --userspec "$user" "$root" "${@:4}"
' _ "$root" "$user" "$work/given" "$entrypoint" run --leader-elect --operator-namespace=quartermaster-system \
  --metrics-bind-address=127.0.0.1:0 --health-probe-bind-address=127.0.0.1:0 >"$work/operator.log" 2>&1 &
operator=$!
ready=''
for ((tries = 0; tries < 600; tries++)); do
  kill -0 "$operator"
  address=$(grep -oP 'listening for --health-probe-bind-address.*"address":"\K[^"]+|"address":"\K[^"]+(?=.*listening for --health-probe)' "$work/operator.log" | head -n 1) || true
  if [ -n "$address" ] && curl --silent --fail --noproxy '*' "http://$address/readyz" >"$work/readyz.log"; then
    ready=yes
    break
  fi
  sleep 0.1
done
[ -n "$ready" ] || { echo 'the operator of the image is not ready' >&2; exit 1; }
size=$(du --summarize --human-readable "$root" | cut -f 1)

# SIGTERM, as a kubelet sends it, to the operator: unshare itself ignores it, and exits with the operator's status.
program=$(tr -d " " <"/proc/$operator/task/$operator/children")
kill -TERM "$program"
wait "$operator" || { echo "the operator of the image did not drain: exit code $?" >&2; exit 1; }
operator=''
step "ready: $(tr '\n' ';' <"$work/readyz.log") the image has $size"
