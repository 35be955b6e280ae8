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

{{- /* For objects outside the release's namespace, where another release may have the same name. */ -}}
{{- define "vit-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "vit-operator.name" .) -}}
{{- end -}}

{{- define "vit-operator.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "vit-operator.name" .) -}}
{{- end -}}

{{- /* Namespace of the release's test job. */ -}}
{{- define "vit-operator.jobNamespace" -}}
{{- .Values.namespace | default .Release.Namespace -}}
{{- end -}}

{{- /* An image reference, from a list of the image's values and its default tag. */ -}}
{{- define "vit-operator.image" -}}
{{- $image := first . -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (last .) }}{{ end -}}
{{- end -}}

{{- define "vit-operator.selectorLabels" -}}
app.kubernetes.io/name: vit-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Without the selector labels of the operator's pods. */ -}}
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

{{- /* A scrape endpoint, from the values of a monitor. */ -}}
{{- define "vit-operator.endpoint" -}}
port: metrics
# Series of stragglers have their job's namespace, not the operator's.
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
