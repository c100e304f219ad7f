{{/* Names and labels that several templates share. */}}

{{- define "mainstem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "mainstem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "mainstem.name" .) .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s-operator" .Release.Name (include "mainstem.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What is not in a namespace carries the release's, whole, so that two releases never meet. */}}
{{- define "mainstem.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "mainstem.fullname" .) -}}
{{- end -}}

{{- define "mainstem.serviceAccount" -}}
{{- default (ternary (include "mainstem.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "mainstem.selector" -}}
app.kubernetes.io/name: {{ include "mainstem.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "mainstem.labels" -}}
{{ include "mainstem.labelsWith" (list . dict) }}
{{- end -}}

{{/*
(list . labels): the chart's own, then these, then commonLabels. Of two with one key the first counts: a key that is written twice is
refused by tools that read what Helm has rendered, and selectors have to match.
*/}}
{{- define "mainstem.labelsWith" -}}
{{- $root := index . 0 -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" -}}
{{- $own := dict "app.kubernetes.io/version" $root.Chart.AppVersion "app.kubernetes.io/managed-by" $root.Release.Service "helm.sh/chart" $chart -}}
{{- $selector := fromYaml (include "mainstem.selector" $root) -}}
{{- toYaml (merge $selector $own (default dict (index . 1)) (default dict $root.Values.commonLabels)) -}}
{{- end -}}

{{/* (list . "broker"): an image with registry and tag, unless its name says a tag or a digest itself. */}}
{{- define "mainstem.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.image (index . 1) -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image }}
{{- if not (regexMatch "[:@][^/]*$" $image) }}:{{ default $root.Chart.AppVersion $root.Values.image.tag }}{{ end }}
{{- end -}}

{{/* The names of image.pullSecrets, which has items such as {name: registry}, separated by commas. */}}
{{- define "mainstem.pullSecrets" -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names .name }}{{ end -}}
{{- join "," $names -}}
{{- end -}}

{{/* Where a BrokerCluster of the release belongs: beside the operator if it watches that, else in the first that it watches. */}}
{{- define "mainstem.home" -}}
{{- $watched := .Values.watchNamespaces -}}
{{- if or .Values.watchAnyNamespace (empty $watched) (has .Release.Namespace $watched) -}}
{{ .Release.Namespace }}
{{- else -}}
{{ first $watched }}
{{- end -}}
{{- end -}}

{{- define "mainstem.namespaces" -}}
{{- if not .Values.watchAnyNamespace -}}
{{- default (list .Release.Namespace) .Values.watchNamespaces | join "," -}}
{{- end -}}
{{- end -}}

{{/*
Fails where values are missing that every values.yaml of this chart has, as after an upgrade with --reuse-values from an
older chart: their first use would fail without saying what to do, or what is on by default would be off.
*/}}
{{- define "mainstem.requireValues" -}}
{{- range list "image" "crds" "serviceAccount" "rbac" "resources" "podSecurityContext" "securityContext" "deletionProtection" "admissionPolicies" "networkPolicy" "metrics" "metrics.rules" "metrics.serviceMonitor" "cluster" "test" "image.pullPolicy" "image.operator" "image.broker" "image.zookeeper" "image.spark" "crds.upgrade" "replicas" "logLevel" "resyncSeconds" "clusterDomain" "serviceAccount.create" "rbac.create" "rbac.aggregate" "terminationGracePeriodSeconds" "deletionProtection.enabled" "admissionPolicies.enabled" "networkPolicy.enabled" "metrics.serviceMonitor.interval" "cluster.name" "cluster.spec" "test.records" }}
{{- $found := $.Values }}
{{- range splitList "." . }}
{{- if kindIs "map" $found }}{{ $found = index $found . }}{{ end }}
{{- end }}
{{- if kindIs "invalid" $found }}
{{- fail (printf "The values have no %s, which this chart reads. If this is an upgrade with --reuse-values, use --reset-then-reuse-values instead: it adds the defaults of the new chart. Otherwise, give it a value: null takes its default away." .) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What the metadata of hooks' pods has of the operator's. Labels of the operator itself would make them its own. */}}
{{- define "mainstem.podLabels" -}}
{{- $labels := merge dict (default dict .Values.podLabels) (default dict .Values.commonLabels) -}}
{{- with omit $labels "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where the pods of hooks run: they go where the operator's pods may, beside whatever other pods are there. */}}
{{- define "mainstem.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with get (default dict .Values.affinity) "nodeAffinity" }}
affinity:
  nodeAffinity: {{- toYaml . | nindent 4 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}
