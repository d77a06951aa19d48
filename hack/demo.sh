#!/usr/bin/env bash
# Shows Quartermaster at work on a real control plane on this machine, with kubectl, and leaves nothing behind.
# `make demo` runs it. HOLD=1: stay up afterwards. NO_COLOR: no colours.
set -euo pipefail

# The kernel tells this script, by SIGTERM, when whoever started it is gone; the check closes the gap before it was asked.
if [ -z "${DEMO_OF:-}" ]; then
  DEMO_OF=$PPID exec setpriv --pdeathsig TERM -- bash "${BASH_SOURCE[0]}" "$@"
fi
[ "$PPID" = "$DEMO_OF" ] || exit 143
unset DEMO_OF

cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d "${TMPDIR:-/tmp}/quartermaster-demo-XXXXXX") # kubeconfigs and logs, for this user's eyes only
readonly work token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU chat=12345678 system=quartermaster-system

exec {terminal}>&1
bold='' green='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
  bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
fi

# --- What runs, and its end ------------------------------------------------------------------------------------------

names=() pids=() # what this script started, in that order
doing='starting' # what a failure is said to have interrupted
stopped=''       # the signal that ended it, if one did

# Each program has a session of its own, so that a Ctrl-C reaches this script alone, which then ends them in order; and
# should this script be killed, the kernel ends them.
start() { # name, command...: its output goes to $work/NAME.log
  setsid setpriv --pdeathsig TERM -- "${@:2}" >"$work/$1.log" 2>&1 </dev/null {terminal}>&- &
  names+=("$1") pids+=($!)
}

alive() { kill -0 "$1" 2>/dev/null; }

end() { # process: SIGTERM to it and all that it started, SIGKILL to what is left after 5 s
  kill -TERM -- "-$1" 2>/dev/null || kill -TERM "$1" 2>/dev/null || true
  local tries
  for ((tries = 0; tries < 100; tries++)); do
    alive "$1" || break
    sleep 0.05
  done
  kill -KILL -- "-$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

finish() {
  local status=$? i log
  trap - EXIT
  trap '' INT TERM HUP
  set +e
  exec >&"$terminal" # whatever it came in the middle of
  if [ -n "$stopped" ]; then
    echo
    echo "Stopped ($stopped). Ending what was started ..."
  elif [ "$status" != 0 ]; then
    echo
    echo "${red}The demo failed while: $doing${plain}"
    for log in "$work"/*.log; do
      [ -s "$log" ] || continue
      echo "${bold}The last lines of $(basename "$log"):${plain}"
      tail -n 15 "$log" | sed 's/^/  /'
    done
  fi
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do end "${pids[i]}" 2>/dev/null; done
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'stopped=Ctrl-C; exit 130' INT
trap 'stopped="its parent ended, or it was told to stop"; exit 143' TERM
trap 'stopped="the terminal was closed"; exit 129' HUP

fail() { # words
  doing="$doing: $*"
  exit 1
}

wait_for() { # what, seconds, command...: until the command succeeds
  local what=$1 deadline=$((SECONDS + $2)) i
  shift 2
  until "$@" >/dev/null 2>&1; do
    for i in "${!pids[@]}"; do alive "${pids[i]}" || fail "${names[i]} has ended"; done
    [ "$SECONDS" -lt "$deadline" ] || fail "$what has not come about"
    sleep 0.05
  done
}

# --- What is shown ---------------------------------------------------------------------------------------------------

chapter() { printf '\n%s== %s%s\n' "$bold" "$1" "$plain"; }

tell() { printf '%s\n' "$@"; }

run() { # a command line: shown as it is typed, then run
  doing=$1
  printf '\n%s$ %s%s\n' "$bold" "$1" "$plain"
  eval "$1"
}

declare -A heard=([receivers]=0 [aws]=0) # lines of their output that were shown
received() { # text, by whom (the receivers): waits until it is among what arrived since the last call, and shows all of that
  local by=${2:-receivers} lines
  doing="waiting for a message with: $1"
  wait_for 'the message' 30 arrived "$1" "$by"
  lines=$(tail -n "+$((heard[$by] + 1))" "$work/$by.log")
  heard[$by]=$((heard[$by] + $(wc -l <<<"$lines")))
  printf '\n'
  sed "s/^/    $green/; s/\$/$plain/" <<<"$lines"
}
arrived() { tail -n "+$((heard[$2] + 1))" "$work/$2.log" | grep -qF -- "$1"; }

delivered() { # TrackedField, count of entries: waits until they are there and none is on its way
  doing="waiting for $2 entries of $1 to be delivered"
  wait_for 'their delivery' 30 all_delivered "$1" "$2"
}
all_delivered() {
  kubectl get trackedfield "$1" -o json |
    jq -e "(.status | length) == $2 and all(.status[]; .delivery == \"Delivered\")"
}

waits() { kubectl get trackedfield web-image -o json | grep -F quartermaster.dev/waiting; }
well() { ! waits; }

copy() { # what is waited for, colour
  doing="waiting for $1"
  wait_for "$1" 30 coloured "$2"
}
coloured() { [ "$(kubectl -n shop get configmap settings -o jsonpath='{.data}')" = "{\"colour\":\"$1\"}" ]; }

scaled() {
  [ "$(kubectl get deployment appservice-sample -o jsonpath='{.status.readyReplicas} {..containers[0].image}')" = '3 nginx:1.7.9' ]
}

ready() ( # the operator says so
  address=$(grep -oP 'listening for --health-probe-bind-address.*?\K127\.0\.0\.1:\d+' "$work/quartermaster.log")
  exec 3<>"/dev/tcp/${address/://}"
  printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3
  read -r line <&3
  [[ $line == *' 200 '* ]]
)

# --- Building --------------------------------------------------------------------------------------------------------

build() { # builds what is missing, side by side; sets $plane and $cargo to the processes that do
  local began=$SECONDS told=0 minutes=0 gigabytes=0 need='' new='' process still
  [ -x "$target/release/quartermaster" ] || new=yes
  doing='building what is missing'
  start control-plane bash hack/controlplane/build.sh
  plane=${pids[-1]}
  start operator bash -c 'cargo build --release -p quartermaster && cargo build -p testbed'
  cargo=${pids[-1]}
  readonly plane cargo

  # Each says at once whether it has anything to do.
  until [ -s "$work/control-plane.log" ] || ! alive "$plane"; do sleep 0.05; done
  until grep -qE 'Compiling|Download|Blocking' "$work/operator.log" || ! alive "$cargo"; do sleep 0.05; done
  if grep -q '^Building' "$work/control-plane.log"; then
    need+=', the control plane (from its Go modules)' minutes=7 gigabytes=6
  fi
  if [ -n "$new" ]; then
    need+=', the operator (in release mode) and the testbed' minutes=$((minutes + 10)) gigabytes=$((gigabytes + 2))
  elif grep -q Compiling "$work/operator.log"; then
    need+=', what changed since the last start' minutes=$((minutes + 4))
  fi
  if [ -n "$need" ]; then
    chapter 'First, what is missing is built'
    tell "That is ${need#, }:" "about $minutes minutes on 2 cores, and ${gigabytes/#0/less than 1} GB of disk. The next start needs none of it."
  fi

  local pending=("$plane" "$cargo")
  while [ ${#pending[@]} -gt 0 ]; do
    still=()
    for process in "${pending[@]}"; do
      if alive "$process"; then still+=("$process"); else wait "$process" || fail 'the build failed'; fi
    done
    pending=(${still[@]+"${still[@]}"})
    if [ -n "$need" ] && [ -t 1 ]; then
      printf '\r\e[K%s' "$(progress $((SECONDS - began)))"
    elif [ $((SECONDS - began - told)) -ge 30 ]; then
      told=$((SECONDS - began))
      tell "$(progress "$told")"
    fi
    sleep 0.1
  done
  [ -z "$need" ] || [ ! -t 1 ] || echo
  names=() pids=()
  rm "$work/control-plane.log" "$work/operator.log"
}

progress() { # seconds so far: one line that says how far both are
  local programs crates
  programs=$(grep -c '^  .* s)$' "$work/control-plane.log") || true
  crates=$(grep -c '^ *Compiling ' "$work/operator.log") || true
  printf '  %d:%02d  control plane: %s; operator: %s' $(($1 / 60)) $(($1 % 60)) \
    "$(alive "$plane" && echo "$programs of 6 programs" || echo done)" \
    "$(alive "$cargo" && echo "$crates crates" || echo done)"
}

# --- The demo --------------------------------------------------------------------------------------------------------

tell "${bold}Quartermaster does the everyday chores of a cluster: it tells you when a field changes, keeps ConfigMaps copied,${plain}" \
  "${bold}runs an app from one short resource, and opens an AWS load balancer.${plain}" \
  "Here it does so on a real Kubernetes control plane, on this machine only; your own clusters are not touched."

# cargo's own word on where it builds; CARGO_TARGET_DIR and its configuration count.
target=$(cargo metadata --no-deps --format-version 1 | jq -r .target_directory)
build
binaries=$(bash hack/controlplane/build.sh)

# From here on nothing of the user's counts: no cluster, no kubectl preference, no proxy, no setting of the operator.
unset "${!QUARTERMASTER_@}" "${!KUBE@}" "${!POD_@}" RUST_BACKTRACE HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy \
  all_proxy no_proxy
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache} # moto is there
export HOME=$work PATH="$target/release:$target/debug:$binaries:$PATH" KUBEBUILDER_ASSETS=$binaries KUBECONFIG=$work/admin.kubeconfig

chapter "A control plane, and the world outside"
doing='starting the control plane'
began=$SECONDS
start cluster testbed cluster --kubeconfig-out "$KUBECONFIG"
start aws env XDG_CACHE_HOME="$cache" testbed aws --env-out "$work/aws.env"
start receivers testbed receivers --token "$token" --chat "$chat" --urls-out "$work/urls"
wait_for "the control plane" 120 test -s "$KUBECONFIG"
wait_for "the receivers" 30 test -s "$work/urls"
wait_for "what stands in for AWS" 120 test -s "$work/aws.env"
# shellcheck source=/dev/null
. "$work/urls"
tell "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and kwok in place of a kubelet: up in $((SECONDS - began)) s." \
  "In place of Telegram a Bot API of our own listens on $TELEGRAM_API_URL," \
  "a webhook receiver on $WEBHOOK_URL, and moto in place of AWS. What reaches them is shown in the margin, like this:" "" \
  "    ${green}| a message$plain"

chapter "Quartermaster is installed, and runs with the rights of its own ServiceAccount"
run 'kubectl apply -k config/local'
doing='starting the operator'
testbed service-account-kubeconfig "$system" quartermaster-controller-manager --kubeconfig "$KUBECONFIG" \
  --out "$work/operator.kubeconfig"
flags=(--telegram-api-url="$TELEGRAM_API_URL" --webhook-allow-loopback)
printf '\n%s$ KUBECONFIG=%s quartermaster run %s &%s\n' "$bold" "$work/operator.kubeconfig" "${flags[*]}" "$plain"
# shellcheck disable=SC2016 # it is for the other shell
start quartermaster bash -c '. "$0"; exec env KUBECONFIG="$1" quartermaster run "${@:2}"' \
  "$work/aws.env" "$work/operator.kubeconfig" "${flags[@]}" --metrics-bind-address=0 --health-probe-bind-address=127.0.0.1:0 --log-format=human
wait_for 'its readiness' 60 ready
tell 'It is ready: it watches everything it looks at, and polls nothing.'

chapter 'A contact point: where messages go'
tell "The bot's token goes into a Secret. A ContactPoint names it, and the chat."
run "kubectl -n $system create secret generic telegram-cp-token --from-literal=token=$token"
run 'kubectl apply -f config/samples/deploy.yaml -f config/samples/tg_v1_contactpoint.yaml'
run 'kubectl wait --for=condition=Ready contactpoint/telegram-cp --timeout=30s'
received 'Contact point is ready'
run 'kubectl get contactpoint telegram-cp'

chapter 'A tracked field: what messages are about'
tell 'It follows the replicas of the Deployment nginx. The first message says what they are now.'
run 'kubectl apply -f config/samples/tg_v1_trackedfield.yaml'
delivered nginx-deployment-replicas 1
received 'Value: 1'

run 'kubectl scale deployment nginx --replicas 3'
delivered nginx-deployment-replicas 2
received 'Value: 3'

run 'kubectl delete deployment nginx'
delivered nginx-deployment-replicas 3
received 'Value: -1'

tell '' 'Each change was written down before it was sent, and marked as delivered after: a killed operator loses none.'
run 'kubectl get TrackedField/nginx-deployment-replicas -o json | jq .status'

chapter 'The same through a webhook: any field, in your own words, signed'
run "kubectl create secret generic hook --from-literal=token=open-sesame \\
    --from-literal=signing-key=\"whsec_\$(openssl rand -base64 32)\""
run "sed 's#https://hooks.example.com#$WEBHOOK_URL#' config/samples/tg_v1_contactpoint_webhook.yaml | kubectl apply -f -"
run 'kubectl create deployment web --image=nginx:1.28'
run 'kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata:
  name: web-image
spec:
  target: {kind: Deployment, namespace: default, name: web}
  field: image
  contactPoint: webhook
  template: "{{ name }} runs {{ value }}{% if previous %} in place of {{ previous }}{% endif %}"
YAML'
delivered web-image 1
doing='waiting for the webhook'
heard[receivers]=$(wc -l <"$work/receivers.log")
run 'kubectl set image deployment/web nginx=nginx:1.29'
delivered web-image 2
received 'web runs nginx:1.29 in place of nginx:1.28'

chapter 'When something is wrong, it says what'
tell 'Here the TrackedField is given the name of a contact point that is not there.'
run "kubectl patch trackedfield web-image --type=merge --patch '{\"spec\": {\"contactPoint\": \"telegram-chat\"}}'"
doing='waiting for its word on a contact point that is not there'
wait_for 'the word' 30 waits
run "kubectl get trackedfield web-image -o json | jq -r '.metadata.annotations[\"quartermaster.dev/waiting\"]'"
run "kubectl patch trackedfield web-image --type=merge --patch '{\"spec\": {\"contactPoint\": \"webhook\"}}'"
doing='waiting for all to be well again'
wait_for 'that' 30 well

chapter 'A ConfigMap kept copied'
run 'kubectl create configmap settings --from-literal=colour=blue'
run 'kubectl create namespace shop'
run 'kubectl apply -f config/samples/apps_v1_configmapsync.yaml'
run 'kubectl wait --for=condition=Ready cmsync/configmapsync-sample --timeout=30s'
run 'kubectl -n shop get configmap settings -o jsonpath="{.data}{\"\\n\"}"'
tell '' 'An edit of the source is copied, and an edit of the copy is put right.'
run "kubectl patch configmap settings --type=merge --patch '{\"data\": {\"colour\": \"green\"}}'"
copy 'the copy' green
run "kubectl -n shop patch configmap settings --type=merge --patch '{\"data\": {\"colour\": \"red\", \"more\": \"x\"}}'"
copy 'the copy to be put right' green
run 'kubectl -n shop get configmap settings -o jsonpath="{.data}{\"\\n\"}"'

chapter 'An app from one short resource'
run 'kubectl apply -f config/samples/kosmos_v1_appservice.yaml'
run 'kubectl wait --for=condition=Ready appservice/appservice-sample --timeout=60s'
run 'kubectl get AppService'
run 'kubectl get deploy'
run 'kubectl get svc'
tell '' 'It scales as a Deployment does, and what somebody changes in what it made is put right.'
run 'kubectl scale appservice/appservice-sample --replicas=3'
run 'kubectl set image deployment/appservice-sample appservice-sample=httpd'
doing='waiting for three replicas of its own image'
wait_for 'that' 60 scaled
run 'kubectl get deployment appservice-sample -o wide'

chapter 'A Pod with a banner'
run 'kubectl apply -f config/samples/demo_v1_myapp.yaml'
run 'kubectl wait --for=condition=Ready myapp/example-app --timeout=60s'
run 'kubectl get myapp'
run 'kubectl get pod example-app-pod'

chapter 'An AWS load balancer'
tell 'AWS is moto here, which knows the two subnets of the sample.'
run 'kubectl apply -f config/samples/demo_v1_myingress.yaml'
run 'kubectl wait --for=condition=Ready myingress/myapp --timeout=60s'
received 'CreateLoadBalancer' aws
run 'kubectl get myingress myapp'

chapter 'All that it looks after'
run 'kubectl get quartermaster -A'

chapter 'And what it made outside of the cluster goes with its resource'
run 'kubectl delete myingress myapp'
received 'DeleteLoadBalancer' aws

if [ "${HOLD:-}" != 1 ]; then
  tell '' "That was all; it took $SECONDS s. \`make demo HOLD=1\` stays up, for you to try it yourself. Ending everything."
  exit 0
fi
trap 'stopped=; exit 0' INT TERM
tell '' 'It all stays up until Ctrl-C, and shows what is received. In another terminal:' '' \
  "    export KUBECONFIG=$KUBECONFIG" "    export PATH=\"$binaries:\$PATH\"  # kubectl, if you have none" \
  "    tail -f $work/quartermaster.log"
doing='holding'
while true; do
  wait_for 'a message' $((SECONDS + 3600)) arrived '' receivers
  received ''
done
