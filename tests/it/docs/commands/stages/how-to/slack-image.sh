#= https://hooks.slack.com/services/T000/B000/XXXX $(cat slack-url)
setsid python3 tests/it/docs/commands/receiver.py slack </dev/null >receiver.err 2>&1 &
until [ -s slack-url ]; do sleep 0.1; done
kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl -n shop create deployment web --image=nginx:1.28
#: kubectl -n shop delete trackedfieldset/images contactpoint/slack secret/slack rolebinding/shop-edit
# The author may create these objects.
kubectl -n shop get contactpoint/slack trackedfieldset/images -o json |
  jq '.items[] | {apiVersion, kind, spec, metadata: {name: "try", namespace: "shop"}}' |
  kubectl create --as=alice --as-group=shop --dry-run=server -f -
# Slack has received what the page shows.
[ "$(jq -r .text slack.log)" = "Contact point is ready
Resource kind: Deployment
Name: web
Status: Updated
Value: nginx:1.29
Namespace: shop
Previous: nginx:1.28
Changed by: kubectl-set" ]
