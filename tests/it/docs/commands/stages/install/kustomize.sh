#! nothing is installed
#: kubectl apply -k overlay
mkdir overlay
cat >overlay/kustomization.yaml <<'YAML'
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../config/default
images:
- name: quartermaster
  newName: YOUR.REGISTRY/quartermaster
  newTag: TAG
YAML
