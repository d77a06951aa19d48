#= NEW_TOKEN 12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl -n shop create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
kubectl -n shop create deployment web --image=nginx:1.28
kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: ContactPoint
metadata: {name: telegram-cp, namespace: shop}
spec: {type: Telegram, telegramSpec: {chatId: -1001234567890}, apiToken: {secretName: telegram-cp-token, key: token}}
---
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata: {name: web-replicas, namespace: shop}
spec: {contactPoint: telegram-cp, field: replicas, target: {kind: Deployment, namespace: shop, name: web}}
YAML
#: kubectl -n shop create rolebinding shop-edit --clusterrole=edit --group=shop
kubectl -n shop wait --for=jsonpath='{.status[0].delivery}'=Delivered trackedfield/web-replicas
#: kubectl -n shop delete rolebinding shop-edit
# The operator has read the new Secret.
kubectl -n shop wait --for=jsonpath='{.status.testsAccepted}'=2 contactpoint/telegram-cp --timeout=5s
