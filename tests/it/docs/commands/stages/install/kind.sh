#! nothing is installed
#: kubectl -n quartermaster-system rollout status deployment/quartermaster-controller-manager
# What `make deploy` does.
kubectl apply -k config/default
#: kubectl -n quartermaster-system get lease quartermaster
