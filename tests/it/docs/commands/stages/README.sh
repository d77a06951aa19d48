#= YOUR_BOTS_TOKEN 12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
kubectl create secret generic telegram-cp-token --from-literal=token=YOUR_BOTS_TOKEN
kubectl apply -f config/samples/tg_v1_contactpoint.yaml -f config/samples/deploy.yaml
#: kubectl get trackedfield web-image -o wide
kubectl create deployment web --image=nginx:1.29
kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata: {name: web-image}
spec: {target: {kind: Deployment, namespace: default, name: web}, field: image, contactPoint: telegram-cp}
YAML
kubectl wait --for=jsonpath='{.status[0].delivery}'=Delivered tf/web-image
kubectl patch tf web-image --type=merge -p '{"spec": {"contactPoint": "telegram-chat"}}'
