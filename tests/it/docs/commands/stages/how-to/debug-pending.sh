kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl -n shop create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
kubectl -n shop create deployment web --image=nginx:1.29 --replicas=3
kubectl apply -f - <<'YAML'
apiVersion: tg.azamaton.ru/v1
kind: ContactPoint
metadata: {name: telegram-cp, namespace: shop}
spec:
  type: Telegram
  apiToken: {secretName: telegram-cp-token, key: token}
  telegramSpec: {chatId: -1001234567899}
---
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata: {name: web-replicas, namespace: shop}
spec: {target: {kind: Deployment, namespace: shop, name: web}, field: replicas, contactPoint: telegram-cp}
YAML
