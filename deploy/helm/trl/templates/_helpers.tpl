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

{{/* The addresses of NATS, after a look whether the values of the cluster fit together. */}}
{{- define "trl.nats" -}}
{{- $c := .Values.cluster }}
{{- if not (or $c.secret $c.tlsSecret) }}{{ fail "cluster.secret or cluster.tlsSecret is needed: what pods know each other by" }}{{ end }}
{{- if not (or $c.nats.url .Values.nats.enabled) }}{{ fail "cluster.nats.url or nats.enabled is needed" }}{{ end }}
{{- $urls := $c.nats.url }}
{{- if not $urls }}{{ $urls = include "nats.urls" .Subcharts.nats }}{{ end }}
{{- if and .Values.tlsSecret (contains "nats://" $urls) (not $c.nats.caSecret) }}{{ fail "trl with TLS wants NATS with TLS, too: nats.tlsSecret, or a tls:// address" }}{{ end }}
{{- $urls }}
{{- end }}

{{/* Where the first container finds the files of the cluster's Secrets. */}}
{{- define "trl.clusterMounts" -}}
{{- with .Values.cluster }}
{{- if .enabled }}
{{- $names := dict "link" .secret "certs" .tlsSecret "natscreds" .nats.credsSecret "natsca" .nats.caSecret }}
{{- range $name := list "link" "certs" "natscreds" "natsca" }}
{{- if get $names $name }}
- {name: {{ $name }}, mountPath: /cluster/{{ $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
