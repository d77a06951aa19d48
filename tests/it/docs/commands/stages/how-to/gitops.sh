kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl create namespace argocd --dry-run=client -o yaml | kubectl apply -f -
kubectl -n argocd create configmap argocd-cm --dry-run=client -o yaml | kubectl apply -f -
kubectl -n shop create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
kubectl -n shop create configmap settings --from-literal=key=value
kubectl -n shop create deployment web --image=nginx:1.29
# The reader saves the script of the page.
sed -n '/^```lua$/,/^```$/p' tests/../docs/how-to/gitops.md | grep -v '^```' > health.lua
mkdir -p shop/templates
cat > shop/Chart.yaml <<'YAML'
apiVersion: v2
name: shop
version: 1.0.0
YAML
cat > shop/templates/resources.yaml <<'YAML'
apiVersion: tg.azamaton.ru/v1
kind: ContactPoint
metadata: {name: telegram-cp}
spec:
  type: Telegram
  apiToken: {secretName: telegram-cp-token, key: token}
  telegramSpec: {chatId: -1001234567890}
---
apiVersion: apps.bixbite.io/v1
kind: ConfigMapSync
metadata: {name: settings}
spec: {sourceNamespace: shop, destinationNamespace: argocd, configMapName: settings}
YAML
#: kubectl -n shop wait trackedfield/web-image --for=jsonpath='{.status[-1:].delivery}'=Delivered --timeout=1m
kubectl apply -f - <<'YAML'
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata: {name: web-image, namespace: shop}
spec: {target: {kind: Deployment, namespace: shop, name: web}, field: image, contactPoint: telegram-cp}
YAML
