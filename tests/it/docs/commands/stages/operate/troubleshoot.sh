#= NAMESPACE default
#= NAME web
kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: ContactPoint
metadata: {name: web}
spec: {type: Webhook, webhookSpec: {url: "http://169.254.169.254/"}}
---
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata: {name: web}
spec: {target: {kind: Deployment, namespace: default, name: web}, field: image, contactPoint: web}
YAML
