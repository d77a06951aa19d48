{{/* Prefix of all names. */}}
{{- define "quartermaster.fullname" -}}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- .Values.fullnameOverride | default $own -}}
{{- end -}}

{{- define "quartermaster.serviceAccount" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false: set serviceAccount.name to the name of an existing account" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (printf "%s-controller-manager" (include "quartermaster.fullname" .)) -}}
{{- end -}}

{{/* Name of the Lease. */}}
{{- define "quartermaster.lease" -}}
{{- .Values.leaderElection.id | default "quartermaster" -}}
{{- end -}}

{{- define "quartermaster.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "quartermaster.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels that select the Pods of this release. */}}
{{- define "quartermaster.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
control-plane: controller-manager
{{- end -}}

{{/* Enabled controllers, as YAML. */}}
{{- define "quartermaster.controllers" -}}
{{- $said := .Values.controllers -}}
{{- $all := keys (.Files.Get "files/permissions.yaml" | fromYaml).controllers | sortAlpha -}}
{{- range $said -}}
{{- $name := trimPrefix "-" . -}}
{{- if not (or (eq $name "*") (has $name $all)) -}}
{{- fail (printf "controllers: unknown name %q; write * for all, or names of: %s" $name (join ", " $all)) -}}
{{- end -}}
{{- end -}}
{{- range $all -}}
{{- if and (or (has "*" $said) (has . $said)) (not (has (printf "-%s" .) $said)) }}
- {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rules of the enabled controllers, without duplicates. `of` is a key of files/permissions.yaml. */}}
{{- define "quartermaster.rules" -}}
{{- $permissions := .root.Files.Get "files/permissions.yaml" | fromYaml -}}
{{- $of := .of -}}
{{- $verbs := dict -}}
{{- range include "quartermaster.controllers" .root | fromYamlArray -}}
{{- $controller := index $permissions.controllers . -}}
{{- range $of -}}
{{- range index $controller . -}}
{{- $rule := . -}}
{{- range .resources -}}
{{- $key := printf "%s %s %s" (first $rule.apiGroups) . ($rule.resourceNames | default list | join ",") -}}
{{- $_ := set $verbs $key (concat (index $verbs $key | default list) $rule.verbs) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range keys $verbs | sortAlpha -}}
{{- $parts := splitList " " . }}
- apiGroups: [{{ first $parts | quote }}]
  resources: [{{ index $parts 1 }}]
  {{- with last $parts }}
  resourceNames: {{ splitList "," . | toJson }}
  {{- end }}
  verbs: {{ index $verbs . | uniq | sortAlpha | toJson }}
{{- end -}}
{{- end -}}

{{/* Cluster-wide rules of an operator that watches some namespaces only. */}}
{{- define "quartermaster.beside" -}}
{{- $permissions := .Files.Get "files/permissions.yaml" | fromYaml -}}
{{- range include "quartermaster.controllers" . | fromYamlArray -}}
{{- with (index $permissions.controllers .).beside }}
{{ toYaml . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Not empty if metrics are served over TLS to authorised callers. */}}
{{- define "quartermaster.metricsAreSecure" -}}
{{- if and .Values.metrics.enabled .Values.metrics.secure -}}
true
{{- end -}}
{{- end -}}

{{/* Folder of the mounted certificate of the metrics. */}}
{{- define "quartermaster.metricsCertPath" -}}
/tmp/k8s-metrics-server/metrics-certs
{{- end -}}

{{- define "quartermaster.subject" }}
- kind: ServiceAccount
  name: {{ include "quartermaster.serviceAccount" . }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{/* An object of a file, with this release's name and labels. */}}
{{- define "quartermaster.ours" -}}
{{- $object := .object -}}
{{- $_ := set $object.metadata "name" (printf "%s-%s" (include "quartermaster.fullname" .root) $object.metadata.name) -}}
{{- $_ := set $object.metadata "labels" (merge (include "quartermaster.labels" .root | fromYaml) $object.metadata.labels) -}}
{{- toYaml $object -}}
{{- end -}}

{{/* Scheduling and security of the Pods. */}}
{{- define "quartermaster.pod" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
{{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "quartermaster.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsUser: 65532
  runAsGroup: 65532
  capabilities:
    drop:
    - ALL
{{- end -}}

{{/* Labels and annotations of objects that only the uninstall hook needs. */}}
{{- define "quartermaster.uninstall" -}}
labels:
  {{- include "quartermaster.labels" . | nindent 2 }}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* A duration such as 1m30s, in milliseconds. */}}
{{- define "quartermaster.milliseconds" -}}
{{- $text := replace "ms" "x" . -}}
{{- $sum := 0 -}}
{{- range $unit, $each := dict "h" 3600000 "m" 60000 "s" 1000 "x" 1 -}}
{{- $sum = regexFind (printf "[0-9]+%s" $unit) $text | trimSuffix $unit | int64 | mul $each | add $sum -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* The release of an object in the cluster, as NAME in NAMESPACE, from Helm's annotations. */}}
{{- define "quartermaster.releaseOf" -}}
{{- $marks := dig "metadata" "annotations" dict . -}}
{{- with index $marks "meta.helm.sh/release-name" -}}
{{ . }} in {{ index $marks "meta.helm.sh/release-namespace" }}
{{- end -}}
{{- end -}}

{{- define "quartermaster.thisRelease" -}}
{{ .Release.Name }} in {{ .Release.Namespace }}
{{- end -}}

{{/* Not empty if `object`, which is in the cluster, belongs to this release. */}}
{{- define "quartermaster.isOurs" -}}
{{- if eq (include "quartermaster.releaseOf" .object) (include "quartermaster.thisRelease" .root) -}}
true
{{- end -}}
{{- end -}}

{{/* The Deployments of namespace `in` that run an operator, as YAML. */}}
{{- define "quartermaster.operators" -}}
{{- range (lookup "apps/v1" "Deployment" .in "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if and (eq (get $labels "app.kubernetes.io/name") $.root.Chart.Name) (eq (get $labels "control-plane") "controller-manager") }}
- {{ toJson . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The release of `object`, if it is another one and its operator exists: CRDs keep the annotations of a deleted release. */}}
{{- define "quartermaster.otherRelease" -}}
{{- $release := include "quartermaster.releaseOf" .object -}}
{{- if and $release (not (include "quartermaster.isOurs" .)) -}}
{{- $namespace := index .object.metadata.annotations "meta.helm.sh/release-namespace" -}}
{{- $there := false -}}
{{- range include "quartermaster.operators" (dict "root" .root "in" $namespace) | fromYamlArray -}}
{{- $there = or $there (eq (include "quartermaster.releaseOf" .) $release) -}}
{{- end -}}
{{- if $there -}}
{{ $release }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Other installations that may act in the same namespaces, as YAML. */}}
{{- define "quartermaster.others" -}}
{{- if .Values.rbac.create -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items -}}
{{- $scope := dig "metadata" "labels" "quartermaster.dev/watch-scope" "" . -}}
{{- $taken := eq .metadata.name (printf "%s-manager-role" (include "quartermaster.fullname" $)) -}}
{{- $ours := or $taken (include "quartermaster.isOurs" (dict "root" $ "object" .)) -}}
{{- if and $scope (not $ours) (or (eq $scope "cluster") (not $.Values.watchNamespaces)) }}
- {{ include "quartermaster.releaseOf" . | default (printf "the install with ClusterRole %s" .metadata.name) | quote }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
