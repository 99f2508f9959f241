{{- /* The selector of a DaemonSet cannot be changed: an existing one keeps its own. */ -}}
{{- define "tweed.selector" -}}
{{- $there := lookup "apps/v1" "DaemonSet" .Release.Namespace "kube-flannel-ds" -}}
{{- $usual := dict "app" "flannel" "k8s-app" "flannel" -}}
{{- dig "spec" "selector" "matchLabels" $usual ($there | default dict) | toYaml -}}
{{- end -}}

{{- define "tweed.labels" -}}
{{- $ours := dict "app" "flannel" "k8s-app" "flannel" "tier" "node"
      "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version)
      "app.kubernetes.io/name" .Chart.Name
      "app.kubernetes.io/instance" .Release.Name
      "app.kubernetes.io/version" .Chart.AppVersion
      "app.kubernetes.io/managed-by" .Release.Service -}}
{{- merge dict (include "tweed.selector" . | fromYaml) .Values.global.commonLabels $ours | toYaml -}}
{{- end -}}

{{- /* From (list $ NAME VALUES...); of several values, the first one applies. */ -}}
{{- define "tweed.metadata" -}}
{{- $root := first . -}}
{{- $labels := dict -}}
{{- $annotations := dict -}}
{{- range rest (rest .) -}}
{{- $labels = merge $labels (.labels | default dict) -}}
{{- $annotations = merge $annotations (.annotations | default dict) -}}
{{- end -}}
name: {{ index . 1 }}
labels:
  {{- merge $labels (include "tweed.labels" $root | fromYaml) | toYaml | nindent 2 }}
{{- with merge $annotations $root.Values.global.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tweed.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:flannel
{{- end -}}

{{- /* How annotations of the daemon begin, which adds a slash or a dash to its flag. */ -}}
{{- define "tweed.annotations" -}}
{{- $prefix := .Values.flannel.annotationPrefix | default "flannel.alpha.coreos.com" -}}
{{- if not (contains "/" $prefix) -}}
{{ $prefix }}/
{{- else if or (hasSuffix "/" $prefix) (hasSuffix "-" $prefix) -}}
{{ $prefix }}
{{- else -}}
{{ $prefix }}-
{{- end -}}
{{- end -}}
