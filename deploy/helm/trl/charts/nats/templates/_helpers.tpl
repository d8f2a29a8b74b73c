{{- define "nats.name" -}}
{{ printf "%s-nats" .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "nats.selector" -}}
app.kubernetes.io/name: nats
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nats.labels" -}}
{{ include "nats.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The addresses for clients, one for each server. */}}
{{- define "nats.urls" -}}
{{- $name := include "nats.name" . }}
{{- $scheme := ternary "tls" "nats" (ne .Values.tlsSecret "") }}
{{- $urls := list }}
{{- range $n := until (int .Values.replicas) }}
{{- $urls = append $urls (printf "%s://%s-%d.%s.%s.svc:4222" $scheme $name $n $name $.Release.Namespace) }}
{{- end }}
{{- join "," $urls }}
{{- end }}
