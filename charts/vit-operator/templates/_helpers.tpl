{{- define "vit-operator.name" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $chart .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $chart | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Of what is not in the release's own namespace: another release may have the same name. */ -}}
{{- define "vit-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "vit-operator.name" .) -}}
{{- end -}}

{{- define "vit-operator.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "vit-operator.name" .) -}}
{{- end -}}

{{- /* Where jobs are run that the release makes itself. */ -}}
{{- define "vit-operator.jobNamespace" -}}
{{- .Values.namespace | default .Release.Namespace -}}
{{- end -}}

{{- /* A reference, from a list of the image's values and its default tag. */ -}}
{{- define "vit-operator.image" -}}
{{- $image := first . -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (last .) }}{{ end -}}
{{- end -}}

{{- define "vit-operator.selectorLabels" -}}
app.kubernetes.io/name: vit-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Without what selects the operator's own pods. */ -}}
{{- define "vit-operator.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vit-operator.labels" -}}
{{ include "vit-operator.selectorLabels" . }}
{{ include "vit-operator.commonLabels" . }}
{{- end -}}

{{- /* How Prometheus scrapes, from the values of a monitor. */ -}}
{{- define "vit-operator.endpoint" -}}
port: metrics
# The series of a straggler have the namespace of their job, not the operator's.
honorLabels: true
{{- with .interval }}
interval: {{ . }}
{{- end }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .relabelings }}
relabelings: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
