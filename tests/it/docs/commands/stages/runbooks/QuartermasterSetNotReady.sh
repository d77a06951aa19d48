#= NAMESPACE default
#= NAME web
kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: TrackedFieldSet
metadata: {name: web}
spec: {target: {kind: Deployment}, fields: [replicas], template: {contactPoint: nowhere}}
YAML
