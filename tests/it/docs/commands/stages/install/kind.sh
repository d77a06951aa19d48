#! nothing is installed
#: kubectl -n quartermaster-system rollout status deployment/quartermaster-controller-manager
# What `make deploy` does.
kubectl apply -k config/default
#: kubectl apply -f example/example_appservice.yaml
#! the operator starts
