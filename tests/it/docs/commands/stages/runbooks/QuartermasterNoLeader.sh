#! nothing is installed
kubectl apply -k config/default
kubectl apply -f - <<YAML
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: quartermaster, namespace: quartermaster-system}
YAML
