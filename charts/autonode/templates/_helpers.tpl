{{- define "autonode.labels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "autonode.image" -}}
{{- $repository := .Values.image.repository | required "image.repository: the operator's image is required; a packaged chart of a release names it" -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* The file of --karpenter-settings: what is set of .Values.karpenter. Nothing if nothing is. */ -}}
{{- define "autonode.karpenterSettings" -}}
{{- $settings := dict -}}
{{- range $key, $value := .Values.karpenter -}}
{{- if $value -}}{{- $_ := set $settings $key $value -}}{{- end -}}
{{- end -}}
{{- if $settings -}}{{- toYaml $settings -}}{{- end -}}
{{- end -}}
