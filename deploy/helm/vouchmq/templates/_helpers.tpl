{{- define "vouchmq.name" -}}
{{- if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "vouchmq.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vouchmq.labels" -}}
{{ include "vouchmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "vouchmq.secret" -}}
{{- .Values.auth.existingSecret | default (include "vouchmq.name" .) }}
{{- end }}

{{- define "vouchmq.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* Selectors of the other pods of a shared log; those of the brokers stay what they are. */}}
{{- define "vouchmq.part.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}-{{ .part }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "vouchmq.part.labels" -}}
{{ include "vouchmq.part.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "vouchmq.log.secret" -}}
{{- .Values.replicated.log.existingSecret | default (printf "%s-log" (include "vouchmq.name" .)) }}
{{- end }}

{{- /* No two pods with these labels on one node, and as many in each zone. */}}
{{- define "vouchmq.apart" -}}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- . | nindent 10 }}
{{- end }}

{{- define "vouchmq.spread" -}}
- topologyKey: topology.kubernetes.io/zone
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- . | nindent 6 }}
{{- end }}

{{- define "vouchmq.log.variables" -}}
{{- $log := printf "%s-log" (include "vouchmq.name" .) }}
{{- $servers := list }}
{{- $monitors := list }}
{{- range $number := until 3 }}
{{- $host := printf "%s-%d.%s" $log $number $log }}
{{- $servers = append $servers (printf "nats://vouchmq:$(LOG_PASSWORD)@%s:4222" $host) }}
{{- $monitors = append $monitors (printf "http://%s:8222" $host) }}
{{- end -}}
- name: LOG_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "vouchmq.log.secret" . }}, key: password}}
- name: VOUCHMQ_HA_LOG
  value: {{ join "," $servers | quote }}
- name: VOUCHMQ_HA_MONITORS
  value: {{ join "," $monitors | quote }}
{{- end }}

{{- /* The file without its lookups of names: the addresses of services do not change. */}}
{{- define "vouchmq.balancer.configuration" -}}
{{- $name := include "vouchmq.name" . }}
{{- $text := .Files.Get "files/haproxy.cfg" | replace " init-addr last,libc,none resolvers names" "" }}
{{- $text = regexReplaceAll "(?s)# Names of containers.*?\n\n" $text "" }}
{{- $text | replace "vouchmq-" (printf "%s-" $name) | trimSuffix "\n" }}
{{- if .Values.tls.existingSecret }}

listen amqps
    bind :5671
    balance first
    {{- range $number := until 3 }}
    server {{ $name }}-{{ $number }} {{ $name }}-{{ $number }}:5671 track amqp/{{ $name }}-{{ $number }}
    {{- end }}
{{- end }}
{{- end }}
