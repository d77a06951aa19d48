#! nothing is installed
#= subnet-0123456789abcdef0 subnet-abc
#= subnet-0fedcba9876543210 subnet-def
#: kubectl -n quartermaster-system rollout restart deployment/quartermaster-controller-manager
#! the operator starts
