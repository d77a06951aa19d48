{{/* What all names begin with. */}}
{{- define "quartermaster.fullname" -}}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- .Values.fullnameOverride | default $own -}}
{{- end -}}

{{- define "quartermaster.serviceAccount" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false: write the name of the account that is there into serviceAccount.name" -}}
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

{{/* Labels of everything. */}}
{{- define "quartermaster.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels that find the Pods of this release. */}}
{{- define "quartermaster.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
control-plane: controller-manager
{{- end -}}

{{/* The controllers that run, as YAML: what --controllers says. */}}
{{- define "quartermaster.controllers" -}}
{{- $said := .Values.controllers -}}
{{- $all := keys (.Files.Get "files/rights.yaml" | fromYaml).controllers | sortAlpha -}}
{{- range $said -}}
{{- $name := trimPrefix "-" . -}}
{{- if not (or (eq $name "*") (has $name $all)) -}}
{{- fail (printf "controllers: there is no %q; write * for all, or names of: %s" $name (join ", " $all)) -}}
{{- end -}}
{{- end -}}
{{- range $all -}}
{{- if and (or (has "*" $said) (has . $said)) (not (has (printf "-%s" .) $said)) }}
- {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rules for the controllers that run, equal rights of several once. `of`: which of files/rights.yaml. */}}
{{- define "quartermaster.rules" -}}
{{- $rights := .root.Files.Get "files/rights.yaml" | fromYaml -}}
{{- $of := .of -}}
{{- $verbs := dict -}}
{{- range include "quartermaster.controllers" .root | fromYamlArray -}}
{{- $controller := index $rights.controllers . -}}
{{- range $of -}}
{{- range index $controller . -}}
{{- $rule := . -}}
{{- range .resources -}}
{{- $key := printf "%s %s" (first $rule.apiGroups) . -}}
{{- $_ := set $verbs $key (concat (index $verbs $key | default list) $rule.verbs) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range keys $verbs | sortAlpha -}}
{{- $parts := splitList " " . }}
- apiGroups: [{{ first $parts | quote }}]
  resources: [{{ last $parts }}]
  verbs: {{ index $verbs . | uniq | sortAlpha | toJson }}
{{- end -}}
{{- end -}}

{{/* What an operator of some namespaces needs beside them. */}}
{{- define "quartermaster.beside" -}}
{{- $rights := .Files.Get "files/rights.yaml" | fromYaml -}}
{{- range include "quartermaster.controllers" . | fromYamlArray -}}
{{- with (index $rights.controllers .).beside }}
{{ toYaml . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Says something where metrics are read over TLS, by those who may. */}}
{{- define "quartermaster.metricsAreSecure" -}}
{{- if and .Values.metrics.enabled .Values.metrics.secure -}}
true
{{- end -}}
{{- end -}}

{{/* Where the certificate for them is mounted. */}}
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

{{/* Where Pods may run, and as what. */}}
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

{{/* What exists only to uninstall. */}}
{{- define "quartermaster.uninstall" -}}
labels:
  {{- include "quartermaster.labels" . | nindent 2 }}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Such as 1m30s, in milliseconds. */}}
{{- define "quartermaster.milliseconds" -}}
{{- $text := replace "ms" "x" . -}}
{{- $sum := 0 -}}
{{- range $unit, $each := dict "h" 3600000 "m" 60000 "s" 1000 "x" 1 -}}
{{- $sum = regexFind (printf "[0-9]+%s" $unit) $text | trimSuffix $unit | int64 | mul $each | add $sum -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* The release that an object of the cluster belongs to, as NAME in NAMESPACE: helm marks what it installs. */}}
{{- define "quartermaster.releaseOf" -}}
{{- $marks := dig "metadata" "annotations" dict . -}}
{{- with index $marks "meta.helm.sh/release-name" -}}
{{ . }} in {{ index $marks "meta.helm.sh/release-namespace" }}
{{- end -}}
{{- end -}}

{{- define "quartermaster.thisRelease" -}}
{{ .Release.Name }} in {{ .Release.Namespace }}
{{- end -}}

{{/* Says something where `object`, which is in the cluster, belongs to this release. */}}
{{- define "quartermaster.isOurs" -}}
{{- if eq (include "quartermaster.releaseOf" .object) (include "quartermaster.thisRelease" .root) -}}
true
{{- end -}}
{{- end -}}

{{/* As YAML, the Deployments of namespace `in` that run an operator. */}}
{{- define "quartermaster.operators" -}}
{{- range (lookup "apps/v1" "Deployment" .in "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if and (eq (get $labels "app.kubernetes.io/name") $.root.Chart.Name) (eq (get $labels "control-plane") "controller-manager") }}
- {{ toJson . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The release that `object` belongs to, where that is another one, whose operator is there: CRDs keep the marks of one that is gone. */}}
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

{{/* As YAML, other installs that may act where this one does. */}}
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
