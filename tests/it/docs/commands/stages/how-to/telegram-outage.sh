# A webhook in place of Telegram: a walk cannot switch off the Bot API.
#= Telegram Webhook
setsid python3 tests/it/docs/commands/receiver.py telegram </dev/null >receiver.err 2>&1 &
until [ -s telegram-url ]; do sleep 0.1; done
kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl -n shop create deployment web --image=nginx:1.28
kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: ContactPoint
metadata: {name: telegram-cp, namespace: shop}
spec: {type: Webhook, webhookSpec: {url: "$(cat telegram-url)", body: "{{ text | tojson }}"}}
---
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata: {name: web-replicas, namespace: shop}
spec: {contactPoint: telegram-cp, field: replicas, target: {kind: Deployment, namespace: shop, name: web}}
YAML
#: kubectl -n shop create rolebinding shop-edit --clusterrole=edit --group=shop
kubectl -n shop wait --for=jsonpath='{.status[0].delivery}'=Delivered trackedfield/web-replicas
touch telegram-down
for replicas in 3 5 2; do
  kubectl -n shop scale deployment web --replicas=$replicas
  kubectl -n shop wait --for=jsonpath='{.status[-1:].value}'=$replicas trackedfield/web-replicas
done
#: kubectl -n shop annotate contactpoint/telegram-cp quartermaster.dev/requested-at="$(date +%s)" --overwrite
rm telegram-down
#: kubectl -n shop patch contactpoint telegram-cp --type=merge -p '{"spec":{"suspend":true}}'
# The chat shows what the page says.
[ "$(tail -n 2 telegram.log | jq -r .)" = "Resource kind: Deployment
Name: web
Status: Updated
Value: 3
Namespace: shop
Previous: 1
Changed by: kubectl (scale)
2 changes
Deployment shop/web replicas: 3 -> 5
Deployment shop/web replicas: 5 -> 2" ]
