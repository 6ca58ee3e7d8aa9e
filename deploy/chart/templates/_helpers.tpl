{{/* The namespace of the components, which is part of their certificates and rights. */}}
{{- define "vireo.namespace" -}}
{{- if ne .Release.Namespace "kubevirt" -}}
{{- fail (printf "Vireo is installed in the namespace kubevirt, and not in %s: add --namespace kubevirt --create-namespace" .Release.Namespace) -}}
{{- end -}}
kubevirt
{{- end -}}

{{/* Helm's labels, and those of the user. */}}
{{- define "vireo.labels" -}}
{{- $labels := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
  "app.kubernetes.io/name" .Chart.Name
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (merge $labels .Values.commonLabels) -}}
{{- end -}}

{{/* An image: (list ROOT IMAGE). */}}
{{- define "vireo.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with default $root.Values.image.registry $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default $root.Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{/* What containers may do. */}}
{{- define "vireo.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop:
  - ALL
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Where virt-operator runs, and the Job that waits for it. */}}
{{- define "vireo.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.operator.nodeSelector }}
nodeSelector:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.operator.affinity }}
affinity:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}
