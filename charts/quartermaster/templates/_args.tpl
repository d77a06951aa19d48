{{/* Arguments of the operator: each flag that differs from its default. */}}
{{- define "quartermaster.args" -}}
- run
{{- with .Values.leaderElection }}
{{- if .enabled }}
- --leader-elect
{{- end }}
{{- end }}
{{- if include "quartermaster.metricsAreSecure" . }}
- --metrics-secure
{{- with .Values.metrics.certSecret }}
- --metrics-cert-path={{ include "quartermaster.metricsCertPath" $ }}
{{- end }}
{{- end }}
- --metrics-bind-address={{ ternary (printf ":%d" (int .Values.metrics.port)) "0" .Values.metrics.enabled }}
- --health-probe-bind-address=:{{ int .Values.healthProbe.port }}
{{- if ne (join "," .Values.controllers) "*" }}
- {{ printf "--controllers=%s" (join "," .Values.controllers) | quote }}
{{- end }}
{{- range .Values.watchNamespaces }}
- --watch-namespace={{ . }}
{{- end }}
{{- $policies := ternary (include "quartermaster.fullname" .) "" .Values.admissionPolicies.enabled }}
{{- if ne $policies "quartermaster" }}
- --admission-policy-prefix={{ $policies }}
{{- end }}
{{- if .Values.noCrossNamespaceRefs }}
- --no-cross-namespace-refs
{{- end }}
{{- with .Values.clusterName }}
- {{ printf "--cluster-name=%s" . | quote }}
{{- end }}
{{- if .Values.allowProtectedDestinations }}
- --allow-protected-destinations
{{- end }}
{{- with .Values.sharedSecrets }}
- --shared-secrets={{ . }}
{{- end }}
{{- with .Values.telegramAPIURL }}
- {{ printf "--telegram-api-url=%s" . | quote }}
{{- end }}
{{- if .Values.webhook.allowLoopback }}
- --webhook-allow-loopback
{{- end }}
{{- range .Values.webhook.denyCIDRs }}
- --webhook-deny-cidr={{ . }}
{{- end }}
{{- range .Values.webhook.allowPorts }}
- --webhook-allow-port={{ int . }}
{{- end }}
{{- if .Values.webhook.quotePrivate }}
- --webhook-quote-private
{{- end }}
{{- with .Values.webhook.proxy }}
- {{ printf "--webhook-proxy=%s" . | quote }}
{{- end }}
{{- with .Values.leaderElection.id }}
- --leader-election-id={{ . }}
{{- end }}
{{- with .Values.leaderElection.leaseDuration }}
- --leader-elect-lease-duration={{ . }}
{{- end }}
{{- with .Values.leaderElection.renewDeadline }}
- --leader-elect-renew-deadline={{ . }}
{{- end }}
{{- with .Values.leaderElection.retryPeriod }}
- --leader-elect-retry-period={{ . }}
{{- end }}
{{- with .Values.log.level }}
- {{ printf "--log-level=%s" . | quote }}
{{- end }}
{{- with .Values.log.format }}
- --log-format={{ . }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}
