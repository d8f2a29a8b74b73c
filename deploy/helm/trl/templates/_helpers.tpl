{{- define "trl.name" -}}
{{- if contains "trl" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-trl" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* What clients in the cluster ask for: the Services, and the pod by its own name. */}}
{{- define "trl.hosts" -}}
{{- $hosts := .Values.hosts }}
{{- $name := include "trl.name" . }}
{{- range $host := list $name (printf "%s-headless" $name) (printf "$(POD_NAME).%s-headless" $name) }}
{{- $long := printf "%s.%s" $host $.Release.Namespace }}
{{- $hosts = concat $hosts (list $host $long (printf "%s.svc" $long) (printf "%s.svc.cluster.local" $long)) }}
{{- end }}
{{- join "," $hosts }}
{{- end }}

{{- define "trl.selector" -}}
app.kubernetes.io/name: trl
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trl.labels" -}}
{{ include "trl.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
