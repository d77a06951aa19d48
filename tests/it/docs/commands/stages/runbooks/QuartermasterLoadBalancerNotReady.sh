#= NAMESPACE default
#= NAME web
kubectl apply -f - <<YAML
apiVersion: demo.rtfm.co.ua/v1
kind: MyIngress
metadata: {name: web}
spec: {subnets: [subnet-nowhere, subnet-else]}
YAML
