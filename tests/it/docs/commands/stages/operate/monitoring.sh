#! nothing is installed
#: kubectl -n quartermaster-system rollout status deployment/quartermaster-controller-manager
# What `make deploy` does.
kubectl apply -k config/default
#: helm install quartermaster charts/quartermaster -n quartermaster-system --create-namespace --set image.repository=YOUR.REGISTRY/quartermaster,image.tag=TAG
another-cluster
#: kubectl create clusterrolebinding quartermaster-metrics-prometheus --clusterrole=quartermaster-metrics-reader --serviceaccount=monitoring:prometheus-k8s
kubectl create namespace monitoring
