#! nothing is installed
kubectl apply -k config/default
kubectl -n quartermaster-system set env deployment/quartermaster-controller-manager QUARTERMASTER_CLUSTER_NAME=prod
