#! nothing is installed
for namespace in shop shop-staging billing quartermaster-system; do
  kubectl create namespace $namespace --dry-run=client -o yaml | kubectl apply -f -
done
quartermaster crds | kubectl apply --server-side -f -
