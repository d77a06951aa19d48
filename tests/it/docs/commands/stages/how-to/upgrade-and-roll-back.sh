#! nothing is installed
helm install quartermaster charts/quartermaster -n quartermaster-system --create-namespace --set image.tag=OLD
#: kubectl apply -k overlay
another-cluster
mkdir overlay
cat >overlay/kustomization.yaml <<'YAML'
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../config/default
images:
- name: quartermaster
  newName: YOUR.REGISTRY/quartermaster
  newTag: NEW
YAML
