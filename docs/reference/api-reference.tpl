{{- /* The template of api-reference.md: HostedCluster and its group come first, and in each group the kinds before their parts. */ -}}
{{- define "gvList" -}}
{{- $groups := list -}}
{{- range . }}{{ if has "HostedCluster" .Kinds }}{{ $groups = prepend $groups . }}{{ else }}{{ $groups = append $groups . }}{{ end }}{{ end -}}
# API reference

| group | kinds |
| --- | --- |
{{ range $groups -}}
{{- $links := list -}}
{{- range .SortedTypes -}}
{{- if eq .Name "HostedCluster" }}{{ $links = markdownRenderTypeLink . | prepend $links }}{{ else if .GVK }}{{ $links = markdownRenderTypeLink . | append $links }}{{ end -}}
{{- end -}}
| {{ markdownRenderGVLink . }} | {{ join ", " $links }} |
{{ end -}}
{{ range $groups }}{{ template "gvDetails" . }}{{ end -}}
{{- end -}}

{{- define "gvDetails" }}
## {{ .GroupVersionString }}

{{ trim .Doc }}
{{ range .SortedTypes }}{{ if eq .Name "HostedCluster" }}{{ template "type" . }}{{ end }}{{ end -}}
{{ range .SortedTypes }}{{ if and .GVK (ne .Name "HostedCluster") }}{{ template "type" . }}{{ end }}{{ end }}
### Parts of {{ .GroupVersionString }}
{{ range .SortedTypes }}{{ if not .GVK }}{{ template "type" . }}{{ end }}{{ end -}}
{{- end -}}

{{- define "type" -}}
{{- if markdownShouldRenderType . }}
{{ if .GVK }}###{{ else }}####{{ end }} {{ .Name }}
{{ with .Doc }}
{{ . }}
{{ end -}}
{{ if .IsAlias }}
_Underlying type:_ {{ markdownRenderTypeLink .UnderlyingType }}
{{ end -}}
{{ with .Validation }}
_Validation:_ {{ join "; " . | markdownRenderFieldDoc }}
{{ end -}}
{{ with .SortedReferences }}
_Appears in:_ {{ range $i, $reference := . }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink . }}{{ end }}
{{ end -}}
{{ if .Members }}
| Field | Description | Default | Validation |
| --- | --- | --- | --- |
{{ with .GVK -}}
| `apiVersion` _string_ | `{{ .Group }}/{{ .Version }}` | | |
| `kind` _string_ | `{{ .Kind }}` | | |
{{ end -}}
{{ range .Members -}}
| `{{ .Name }}` _{{ markdownRenderType .Type }}_ | {{ template "text" (eq .Name "metadata" | ternary "metadata is as in every Kubernetes object." .Doc) }} | {{ markdownRenderDefault .Default }} | {{ template "validation" .Validation }} |
{{ end -}}
{{ end -}}
{{ if .EnumValues }}
| Value | Description |
| --- | --- |
{{ range .EnumValues -}}
| `{{ .Name }}` | {{ template "text" .Doc }} |
{{ end -}}
{{ end -}}
{{ end -}}
{{- end -}}

{{- /* text of a cell: a paragraph is a line. */ -}}
{{- define "text" }}{{ regexReplaceAll "([^\n])\n([^\n])" . "${1} ${2}" | trim | markdownRenderFieldDoc }}{{ end -}}

{{- /* A field without "Required" is optional. */ -}}
{{- define "validation" -}}
{{- $rules := list -}}
{{- range without . "Optional: {}" }}{{ $rules = replace "Required: {}" "Required" . | replace "    <nil>}" "}" | markdownRenderFieldDoc | append $rules }}{{ end -}}
{{ join "<br />" $rules }}
{{- end -}}
