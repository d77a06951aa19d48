#! nothing is installed
#= DIGEST sha256:1111111111111111111111111111111111111111111111111111111111111111
helm install quartermaster charts/quartermaster -n quartermaster-system --create-namespace
#: make deploy IMG=YOUR.REGISTRY/quartermaster:TAG
another-cluster
#: helm upgrade quartermaster charts/quartermaster -n quartermaster-system --reset-then-reuse-values --set crds.install=false,image.tag=TAG,image.digest=DIGEST
another-cluster
helm install quartermaster charts/quartermaster -n quartermaster-system --create-namespace
