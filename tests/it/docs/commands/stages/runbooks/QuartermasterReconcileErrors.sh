#= NAMESPACE default
#= KIND myapp
#= NAME web
kubectl apply -f - <<YAML
apiVersion: demo.rtfm.co.ua/v1
kind: MyApp
metadata: {name: web}
spec: {image: nginx}
YAML
