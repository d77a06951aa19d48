#!/usr/bin/env bash
# Shows Quartermaster on a real control plane on this machine, with kubectl, and removes everything at its end.
# `make demo` runs it. Settings, all from the environment:
#   HOLD=1                         keep everything running until Ctrl-C
#   CLUSTER=current                use the cluster of the current context; the demo asks first, unless YES=1
#   TELEGRAM_TOKEN, TELEGRAM_CHAT  send the messages to this chat, through the real Bot API (or TELEGRAM_API_URL)
#   DEMO_PROGRAMS=FOLDER           use the programs in this folder instead of building them
#   NO_COLOR                       no colours
set -euo pipefail

# The kernel sends SIGTERM to this script when its parent ends. The check covers a parent that ended before the request.
if [ -z "${DEMO_OF:-}" ]; then
  DEMO_OF=$PPID exec setpriv --pdeathsig TERM -- bash "${BASH_SOURCE[0]}" "$@"
fi
[ "$PPID" = "$DEMO_OF" ] || exit 143
unset DEMO_OF

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/demo/place.sh
. hack/demo/place.sh
# shellcheck source=hack/demo/chat.sh
. hack/demo/chat.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/quartermaster-demo-XXXXXX") # kubeconfigs and logs: only this user may read them
readonly work
export TMPDIR=$work # the files of a killed program go with this folder

exec {terminal}>&1
bold='' green='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
  bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
fi

# shellcheck source=hack/demo/programs.sh
. hack/demo/programs.sh
# shellcheck source=hack/demo/building.sh
. hack/demo/building.sh

# --- Output ---------------------------------------------------------------------------------------------------

chapter() { printf '\n%s== %s%s\n' "$bold" "$1" "$plain"; }

tell() { printf '%s\n' "$@"; }

run() { # a command line: prints it, then runs it
  doing=$1
  printf '\n%s$ %s%s\n' "$bold" "$1" "$plain"
  eval "$1"
}

declare -A heard=([receivers]=0 [aws]=0) # printed lines of their output
received() { # text, log (receivers): waits until a new line of the log has the text, and prints all new lines
  local by=${2:-receivers} lines
  doing="waiting for a message with: $1"
  wait_for 'the message' "$patience" arrived "$1" "$by"
  lines=$(tail -n "+$((heard[$by] + 1))" "$work/$by.log")
  heard[$by]=$((heard[$by] + $(wc -l <<<"$lines")))
  printf '\n'
  sed "s/^/    $green/; s/\$/$plain/" <<<"$lines"
}
arrived() { tail -n "+$((heard[$2] + 1))" "$work/$2.log" | grep -qF -- "$1"; }

delivered() { # TrackedField, count of entries: waits until it has so many, all of them Delivered
  doing="waiting for $2 delivered entries of $1"
  wait_for 'the delivery' "$patience" all_delivered "$1" "$2"
}
all_delivered() {
  kubectl get trackedfield "$1" -o json |
    jq -e "(.status | length) == $2 and all(.status[]; .delivery == \"Delivered\")"
}

readonly apps=(app-cart app-login app-orders app-search app-stock)
recorded() { # count of entries: each TrackedField of the set has so many
  kubectl get trackedfields -l quartermaster.dev/set=app-images -o json |
    jq -e "(.items | length) == ${#apps[@]} and all(.items[]; (.status | length) == $1)"
}

waits() { kubectl get trackedfield web-image -o json | grep -F quartermaster.dev/waiting; }
well() { ! waits; }

copy() { # description, colour: waits until the copy has the colour
  doing="waiting for $1"
  wait_for "$1" "$patience" coloured "$2"
}
coloured() { [ "$(kubectl -n "$shop" get configmap settings -o jsonpath='{.data}')" = "{\"colour\":\"$1\"}" ]; }

scaled() {
  [ "$(kubectl get deployment appservice-sample -o jsonpath='{.status.readyReplicas} {..containers[0].image}')" = '3 nginx:1.29' ]
}

ready() ( # the operator answers /readyz with 200
  address=$(grep -oP 'listening for --health-probe-bind-address.*?\K127\.0\.0\.1:\d+' "$work/quartermaster.log")
  exec 3<>"/dev/tcp/${address/://}"
  printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3
  read -r line <&3
  [[ $line == *' 200 '* ]]
)

# --- The demo --------------------------------------------------------------------------------------------------------

tell "${bold}Quartermaster does the everyday chores of a cluster: it sends a message when a field changes, keeps ConfigMaps${plain}" \
  "${bold}copied, runs an app from one short resource, and provisions an AWS load balancer.${plain}"
if [ -n "$current" ]; then
  enter
else
  tell 'The demo runs on a real Kubernetes control plane on this machine. Your own clusters stay untouched.'
fi

programs=${DEMO_PROGRAMS:-}
if [ -z "$programs" ]; then
  # cargo knows where it builds: CARGO_TARGET_DIR and its configuration may change that.
  target=$(cargo metadata --no-deps --format-version 1 | jq -r .target_directory)
  build
  programs=$target/debug
fi
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache} # moto is there
proxy=${HTTPS_PROXY:-${https_proxy:-}}
unset "${!QUARTERMASTER_@}" "${!POD_@}" RUST_BACKTRACE
if [ -z "$current" ]; then
  # The user's cluster, kubectl preferences and proxy must not change the demo.
  binaries=$(bash hack/controlplane/build.sh)
  unset "${!KUBE@}" HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy
  export HOME=$work PATH="$binaries:$PATH" KUBEBUILDER_ASSETS=$binaries KUBECONFIG=$work/admin.kubeconfig
fi
export PATH="$programs:$PATH"

chapter 'Stand-ins for the outside world'
doing='starting the stand-ins'
began=$SECONDS
[ -n "$current" ] || start cluster testbed cluster --kubeconfig-out "$KUBECONFIG"
start aws env XDG_CACHE_HOME="$cache" testbed aws --env-out "$work/aws.env"
start receivers testbed receivers --token "$stand_in_token" --chat "$stand_in_chat" --urls-out "$work/urls"
wait_for "the receivers" 300 test -s "$work/urls"
wait_for "the stand-in for AWS" 300 test -s "$work/aws.env"
# shellcheck source=/dev/null
. "$work/urls"
if [ -z "$current" ]; then
  wait_for "the control plane" 300 test -s "$KUBECONFIG"
  tell "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and kwok in place of a kubelet: ready after $((SECONDS - began)) s."
fi
if [ -n "$own_chat" ]; then
  tell "Telegram messages go to your chat $chat."
else
  tell "A stand-in for the Telegram Bot API listens on $TELEGRAM_API_URL."
fi
tell "A webhook receiver listens on $WEBHOOK_URL, and moto stands in for AWS. Indented lines show what they receive:" "" \
  "    ${green}| a message$plain"

chapter "Install Quartermaster, and run it with the permissions of its own ServiceAccount"
settle_in
run 'kubectl apply -k config/local'
doing='starting the operator'
testbed service-account-kubeconfig "$system" quartermaster-controller-manager --kubeconfig "$KUBECONFIG" \
  --out "$work/operator.kubeconfig"
flags=(--webhook-allow-loopback)
if [ -z "$own_chat" ]; then
  flags+=(--telegram-api-url="$TELEGRAM_API_URL")
elif [ -n "$own_api" ]; then
  flags+=(--telegram-api-url="$own_api")
fi
[ -z "$current" ] || flags+=(--leader-elect --watch-namespace="$home" --watch-namespace="$shop")
printf '\n%s$ KUBECONFIG=%s quartermaster run %s &%s\n' "$bold" "$work/operator.kubeconfig" "${flags[*]}" "$plain"
environment=(HOME="$work" KUBECONFIG="$work/operator.kubeconfig" NO_PROXY='127.0.0.1,localhost' ${proxy:+HTTPS_PROXY="$proxy"})
# shellcheck disable=SC2016 # the other shell expands it
start quartermaster env "${environment[@]}" bash -c '. "$0"; exec quartermaster run "$@"' \
  "$work/aws.env" "${flags[@]}" --metrics-bind-address=0 --health-probe-bind-address=127.0.0.1:0 --log-format=human
operator=${pids[-1]}
wait_for 'the operator to be ready' 60 ready
tell 'The operator is ready. It watches resources and does not poll them.'

chapter 'ContactPoint: where messages go'
tell "The bot's token goes into a Secret. A ContactPoint names the Secret and the chat."
if [ -z "$own_chat" ]; then
  run "kubectl -n $system create secret generic telegram-cp-token --from-literal=token=$token"
else
  # shellcheck disable=SC2016 # printed unexpanded, without the token
  run 'printf %s "$TELEGRAM_TOKEN" | kubectl -n quartermaster-system create secret generic telegram-cp-token --from-file=token=/dev/stdin'
fi
sample deploy.yaml
sample tg_v1_contactpoint.yaml
run "kubectl wait --for=condition=Ready contactpoint/telegram-cp --timeout=${patience}s"
in_chat 'Contact point is ready'
run 'kubectl get contactpoint telegram-cp'

chapter 'TrackedField: which changes are reported'
tell 'The sample follows the replicas of the Deployment nginx. The first message has the present value.'
sample tg_v1_trackedfield.yaml
delivered nginx-deployment-replicas 1
in_chat 'Value: 1'

run 'kubectl scale deployment nginx --replicas 3'
delivered nginx-deployment-replicas 2
in_chat 'Value: 3'

run 'kubectl delete deployment nginx'
delivered nginx-deployment-replicas 3
in_chat 'Value: -1'

tell '' 'The operator writes each change to the status before it sends it, and marks it Delivered afterwards.' \
  'An operator that is killed in between loses no change.'
run 'kubectl get TrackedField/nginx-deployment-replicas -o json | jq .status'

chapter 'A signed webhook, with a template for the text'
run "kubectl create secret generic hook --from-literal=token=open-sesame \\
    --from-literal=signing-key=\"whsec_\$(openssl rand -base64 32)\""
sample tg_v1_contactpoint_webhook.yaml
run 'kubectl create deployment web --image=nginx:1.28'
run 'kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata:
  name: web-image
spec:
  target: {kind: Deployment, namespace: '"$home"', name: web}
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

chapter 'A set: one field of many resources, and one message'
tell 'A TrackedFieldSet tracks the image of each Deployment that it selects. It sends nothing for those that exist already.'
for name in "${apps[@]}"; do run "kubectl create deployment $name --image=nginx:1.28"; done
run 'kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: TrackedFieldSet
metadata:
  name: app-images
spec:
  target: {kind: Deployment, names: {include: ["app-*"]}}
  fields: [image]
  template:
    contactPoint: telegram-cp
    template: "{{ name }} runs {{ value }} in place of {{ previous }}, by {{ changedBy.manager }}"
YAML'
doing='waiting until the set has recorded all images'
wait_for 'the five TrackedFields' "$patience" recorded 1
run 'kubectl get tfs app-images'
tell '' 'A rollout changes all images. With digestSeconds, the ContactPoint collects changes into one message.'
run "kubectl patch contactpoint telegram-cp --type=merge --patch '{\"spec\": {\"digestSeconds\": 300}}'"
run "kubectl wait --for=condition=Ready contactpoint/telegram-cp --timeout=${patience}s"
run "kubectl set image deployment ${apps[*]} nginx=nginx:1.29"
doing='waiting until all changes are recorded'
wait_for 'the five changes' "$patience" recorded 2
tell '' 'All changes are recorded. This annotation sends them now, before the five minutes are over.'
run 'kubectl annotate contactpoint telegram-cp --overwrite quartermaster.dev/requested-at="$(date +%s)"'
in_chat 'app-cart runs nginx:1.29 in place of nginx:1.28, by kubectl-set'
run 'quartermaster history tfs/app-images'

chapter 'A resource says what is wrong'
tell 'Here the TrackedField gets the name of a ContactPoint that does not exist.'
run "kubectl patch trackedfield web-image --type=merge --patch '{\"spec\": {\"contactPoint\": \"telegram-chat\"}}'"
doing='waiting for the message about the missing ContactPoint'
wait_for 'the message' 30 waits
run "kubectl get trackedfield web-image -o json | jq -r '.metadata.annotations[\"quartermaster.dev/waiting\"]'"
run "kubectl patch trackedfield web-image --type=merge --patch '{\"spec\": {\"contactPoint\": \"webhook\"}}'"
doing='waiting for the TrackedField to recover'
wait_for 'the recovery' 30 well

chapter 'ConfigMapSync: a ConfigMap in another namespace'
run 'kubectl create configmap settings --from-literal=colour=blue'
[ -n "$current" ] || run "kubectl create namespace $shop"
sample apps_v1_configmapsync.yaml
run "kubectl wait --for=condition=Ready cmsync/configmapsync-sample --timeout=${patience}s"
run "kubectl -n $shop get configmap settings -o jsonpath='{.data}{\"\\n\"}'"
tell '' 'The operator copies an edit of the source, and corrects an edit of the copy.'
run "kubectl patch configmap settings --type=merge --patch '{\"data\": {\"colour\": \"green\"}}'"
copy 'the copy' green
run "kubectl -n $shop patch configmap settings --type=merge --patch '{\"data\": {\"colour\": \"red\", \"more\": \"x\"}}'"
copy 'the corrected copy' green
run "kubectl -n $shop get configmap settings -o jsonpath='{.data}{\"\\n\"}'"

chapter 'AppService: an app from one short resource'
sample kosmos_v1_appservice.yaml
run "kubectl wait --for=condition=Ready appservice/appservice-sample --timeout=${patience}s"
run 'kubectl get AppService'
run 'kubectl get deploy'
run 'kubectl get svc'
tell '' 'An AppService scales as a Deployment does. The operator corrects what others change in its Deployment.'
run 'kubectl scale appservice/appservice-sample --replicas=3'
run 'kubectl set image deployment/appservice-sample appservice-sample=httpd'
doing='waiting for three replicas of its own image'
wait_for 'the correction' "$patience" scaled
run 'kubectl get deployment appservice-sample -o wide'

chapter 'MyApp: a Pod with a banner'
sample demo_v1_myapp.yaml
run "kubectl wait --for=condition=Ready myapp/example-app --timeout=${patience}s"
run 'kubectl get myapp'
run 'kubectl get pod example-app-pod'

chapter 'MyIngress: an AWS load balancer'
tell 'moto stands in for AWS, and has the two subnets of the sample.'
sample demo_v1_myingress.yaml
run "kubectl wait --for=condition=Ready myingress/myapp --timeout=${patience}s"
received 'CreateLoadBalancer' aws
run 'kubectl get myingress myapp'

chapter 'All resources at a glance'
run 'kubectl get quartermaster -A'

chapter 'The load balancer goes with its resource'
run 'kubectl delete myingress myapp'
received 'DeleteLoadBalancer' aws

if [ "${HOLD:-}" != 1 ]; then
  tell '' "The demo is complete after $SECONDS s, and stops everything. \`make demo HOLD=1\` keeps it running for you to try."
  exit 0
fi
trap 'stopped=; exit 0' INT TERM
tell '' 'Everything keeps running until Ctrl-C, and received messages appear here. In another terminal:' '' \
  "    export KUBECONFIG=$KUBECONFIG" "    export PATH=\"${binaries:-$programs}:\$PATH\"  # kubectl, if you have none" \
  "    tail -f $work/quartermaster.log"
doing='holding'
while true; do
  wait_for 'a message' $((SECONDS + 3600)) arrived '' receivers
  received ''
done
