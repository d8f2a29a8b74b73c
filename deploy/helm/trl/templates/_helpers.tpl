{{- define "trl.name" -}}
{{- if contains "trl" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-trl" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
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
