# The cluster of the demo: a control plane of its own, or with CLUSTER=current the cluster of the current context. There the
# demo uses namespaces of its own, and removes everything at its end. Sourced by ../demo.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # variables that ../demo.sh sets and reads

readonly system=quartermaster-system
case "${CLUSTER:-}" in
  '') current='' home=default shop=shop ;;
  current) current=yes home=quartermaster-demo shop=quartermaster-demo-shop ;;
  *)
    echo "CLUSTER=$CLUSTER: write CLUSTER=current for the cluster of your current context, or leave it out" >&2
    exit 2
    ;;
esac
# Time in seconds for each step: nodes of a cluster pull images.
readonly current home shop patience=300

# sample FILE: applies one of config/samples, in this demo's namespaces and for its receivers.
sample() {
  local changes=()
  case $1 in
    tg_v1_contactpoint.yaml) [ -z "$own_chat" ] || changes+=("s/chatId: .*/chatId: $chat_field/") ;;
    tg_v1_contactpoint_webhook.yaml) changes+=("s#https://hooks.example.com#$WEBHOOK_URL#") ;;
    # Another Service may have that port.
    kosmos_v1_appservice.yaml) [ -z "$current" ] || changes+=('/nodePort:/d') ;;
  esac
  [ -z "$current" ] || changes+=("s/amespace: default\$/amespace: $home/" "s/amespace: shop\$/amespace: $shop/")
  if [ ${#changes[@]} -gt 0 ]; then
    run "sed$(printf " -e '%s'" "${changes[@]}") config/samples/$1 | kubectl apply -f -"
  else
    run "kubectl apply -f config/samples/$1"
  fi
}

# Asks before it uses the cluster of the current context, and checks that no object of the demo's exists there.
enter() {
  local context server answer=''
  doing='looking for the current context'
  command -v kubectl >/dev/null || fail 'CLUSTER=current needs kubectl on PATH'
  context=$(kubectl config current-context) || fail 'kubectl has no current context; write: kubectl config use-context NAME'
  (umask 077 && kubectl config view --raw --minify --flatten >"$work/admin.kubeconfig")
  export KUBECONFIG=$work/admin.kubeconfig
  server=$(kubectl config view --output 'jsonpath={.clusters[0].cluster.server}')
  doing="looking at the cluster of the context $context"
  vacant
  tell "The demo will run in the cluster of your current context: $bold$context$plain, at $server" \
    "It creates the namespaces $home, $shop and $system, seven CRDs, roles and admission policies," \
    'and removes all of them at its end. The operator runs on this machine, and acts in these namespaces only.'
  if [ "${YES:-}" != 1 ]; then
    [ -t 0 ] || fail 'no terminal to ask on; write YES=1 to go on without the question'
    read -rp 'Continue? [y/N] ' answer
    if [[ $answer != [yY]* ]]; then
      tell 'Nothing changed.'
      exit 0
    fi
  fi
}

# An object that exists already belongs to somebody: the demo would remove it at its end.
vacant() {
  local there
  there=$(kubectl get --ignore-not-found --output name -k config/local && kubectl get --ignore-not-found --output name namespace "$home" "$shop") ||
    fail 'the cluster does not answer'
  [ -z "$there" ] || fail "the demo creates and removes these objects, and they exist already:
$there
The demo does not run where Quartermaster or a tutorial's operator is installed. To remove what a killed demo left:
  quartermaster uninstall --without-operator --purge
  kubectl delete --ignore-not-found namespace $home $shop
  kubectl delete --ignore-not-found -k config/local"
}

# Creates the demo's namespaces in the user's cluster. Does nothing on the demo's own control plane.
settle_in() {
  [ -n "$current" ] || return 0
  vacant
  entered=yes
  run "kubectl create namespace $home"
  run "kubectl create namespace $shop"
  kubectl config set-context --current --namespace="$home" >/dev/null
}
entered='' # set once the user's cluster may have objects of the demo
operator='' # its process

# Removes the demo's objects from the user's cluster, while the programs of the demo still run.
leave() {
  [ -n "$entered" ] || return 0
  local uninstalled=''
  echo
  echo "Removing the demo's objects from the cluster ..."
  {
    quartermaster uninstall --yes --purge --timeout=2m && uninstalled=yes
    [ -z "$operator" ] || end "$operator" # before its permissions go
    [ -n "$uninstalled" ] || quartermaster uninstall --yes --purge --without-operator --timeout=2m
    kubectl delete --ignore-not-found --timeout=2m namespace "$home" "$shop" && kubectl delete --ignore-not-found --timeout=2m -k config/local
  } >"$work/leave.log" 2>&1 && return 0
  tail -n 15 "$work/leave.log" | sed 's/^/  /'
  echo "${red}Some objects remain.${plain} To remove them: kubectl delete --ignore-not-found namespace $home $shop;" \
    "kubectl delete --ignore-not-found -k config/local"
  return 1
}
