{{- define "vit-operator.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* Of what is not in the release's own namespace: another release may have the same name. */ -}}
{{- define "vit-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "vit-operator.name" .) -}}
{{- end -}}

{{- define "vit-operator.selectorLabels" -}}
app.kubernetes.io/name: vit-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vit-operator.labels" -}}
{{ include "vit-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
