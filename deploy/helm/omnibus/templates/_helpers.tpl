{{/* Names, labels, settings and pods, each in one place. */}}

{{- define "omnibus.fullname" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What selects the pods of a part: dict "root" $ "part" "gateway". */}}
{{- define "omnibus.selector" -}}
app.kubernetes.io/name: omnibus
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "omnibus.labels" -}}
{{ include "omnibus.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* Metadata of an object: dict "root" $ "part" "gateway" ["name" "x" instead of the part's]. */}}
{{- define "omnibus.meta" -}}
name: {{ .name | default (printf "%s-%s" (include "omnibus.fullname" .root) .part) }}
labels: {{- include "omnibus.labels" . | nindent 2 }}
{{- end -}}

{{- define "omnibus.secret" -}}
{{ .Values.credentials.existingSecret | default (printf "%s-credentials" (include "omnibus.fullname" .)) }}
{{- end -}}

{{/* A short word that no other release on the same machine has. */}}
{{- define "omnibus.mark" -}}
{{ printf "%s/%s" .Release.Namespace (include "omnibus.fullname" .) | sha256sum | trunc 8 }}
{{- end -}}

{{/* The users of the bus, as files/nats-users.conf has them. */}}
{{- define "omnibus.users" -}}
{{- list "gateway" "planner" "sidecar" "encoder" "llm" "generator" "operator" | toJson -}}
{{- end -}}

{{/* The name of one pod of several: dict "root" $ "part" "nats" "number" 0. */}}
{{- define "omnibus.podAddress" -}}
{{- $name := printf "%s-%s" (include "omnibus.fullname" .root) .part -}}
{{ printf "%s-%d.%s-nodes" $name (int .number) $name }}
{{- end -}}

{{/* The names of all of them, with commas: dict "root" $ "part" "nats" "count" 3 "form" "nats://%s:4222". */}}
{{- define "omnibus.pods" -}}
{{- $found := list -}}
{{- range $number := until (int .count) -}}
{{- $found = append $found (printf $.form (include "omnibus.podAddress" (dict "root" $.root "part" $.part "number" $number))) -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{/* Values of a bundled server; sentinels are there where the store has replicas: dict "root" $ "part" "sentinel". */}}
{{- define "omnibus.server.values" -}}
{{- if ne .part "sentinel" -}}{{ index .root.Values .part | toJson }}
{{- else -}}
{{- $store := .root.Values.valkey -}}
{{- $claim := merge (dict "size" $store.sentinel.size) $store.persistence -}}
{{- $found := merge (dict "replicas" 3 "persistence" $claim) $store.sentinel $store -}}
{{- set $found "enabled" (and $store.enabled (gt (int $store.replicas) 1)) | toJson -}}
{{- end -}}
{{- end -}}

{{- define "omnibus.busUrl" -}}
{{- $nats := .Values.nats -}}
{{- if not $nats.enabled -}}{{ $nats.url }}
{{- else if gt (int $nats.replicas) 1 -}}{{ include "omnibus.pods" (dict "root" . "part" "nats" "count" $nats.replicas "form" "nats://%s:4222") }}
{{- else -}}nats://{{ include "omnibus.fullname" . }}-nats:4222{{- end -}}
{{- end -}}

{{- define "omnibus.storeUrl" -}}
{{- $valkey := .Values.valkey -}}
{{- if not $valkey.enabled -}}{{ $valkey.url }}
{{- else if gt (int $valkey.replicas) 1 -}}
redis+sentinel://:$(STORE_PASSWORD)@{{ include "omnibus.pods" (dict "root" . "part" "sentinel" "count" 3 "form" "%s:26379") }}/omnibus/0
{{- else -}}
{{ ternary "rediss" "redis" (ne $valkey.tls.serverSecret "") }}://:$(STORE_PASSWORD)@{{ include "omnibus.fullname" . }}-valkey:6379/0
{{- end -}}
{{- end -}}

{{/* A value of a variable: whole numbers are written out, however large. */}}
{{- define "omnibus.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* A variable from the secret: dict "root" $ "name" "X" "key" "x". */}}
{{- define "omnibus.fromSecret" -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ include "omnibus.secret" .root }}, key: {{ .key }}}}
{{- end -}}

{{/* "true" for services that join the bus; a sidecar does so to find those of other machines: dict "root" $ "part" "x". */}}
{{- define "omnibus.onBus" -}}
{{- if or (ne .part "sidecar") (include "omnibus.pulls" .root) }}true{{ end -}}
{{- end -}}

{{/* Variables of a service: dict "root" $ "part" "gateway" "own" values-of-the-service. Its own settings win. */}}
{{- define "omnibus.env" -}}
{{- $root := .root -}}
{{- $bus := include "omnibus.onBus" . -}}
{{- $told := dict "HOME" "/tmp" -}}{{/* what libraries keep besides */}}
{{- if and $bus $root.Values.nats.enabled (gt (int $root.Values.nats.replicas) 1) -}}
  {{- $_ := set $told "OMNIBUS_BUS_REPLICAS" (toString (min 3 (int $root.Values.nats.replicas))) -}}
{{- end -}}
{{- if and (eq .part "gateway") $root.Values.gateway.ingress.host -}}
  {{- $_ := set $told "OMNIBUS_GATEWAY_ALLOWED_HOSTS" $root.Values.gateway.ingress.host -}}
{{- end -}}
{{- range $from := list $root.Values .own -}}
  {{- range $area, $fields := $from.settings -}}
    {{- range $field, $value := $fields -}}
      {{- $_ := set $told (printf "OMNIBUS_%s_%s" (upper $area) (upper $field)) (include "omnibus.text" $value) -}}
    {{- end -}}
  {{- end -}}
  {{- range $name, $value := $from.env -}}{{- $_ := set $told $name (include "omnibus.text" $value) -}}{{- end -}}
{{- end -}}
{{- include "omnibus.checks.env" $told -}}
{{- if and $root.Values.nats.auth $bus }}
- {name: OMNIBUS_BUS_USER, value: {{ .part }}}
{{ include "omnibus.fromSecret" (dict "root" $root "name" "OMNIBUS_BUS_PASSWORD" "key" .part) }}
{{- end }}
{{- if has .part (list "gateway" "planner") }}
{{- if or $root.Values.valkey.enabled (contains "$(STORE_PASSWORD)" $root.Values.valkey.url) }}
{{ include "omnibus.fromSecret" (dict "root" $root "name" "STORE_PASSWORD" "key" "store") }}
{{- end }}
- {name: OMNIBUS_STORE_URL, value: {{ include "omnibus.storeUrl" $root | quote }}}
{{ include "omnibus.fromSecret" (dict "root" $root "name" "OMNIBUS_STORE_SECRET" "key" "signing") }}
{{- if $root.Values.valkey.tls.caSecret }}
- {name: OMNIBUS_STORE_TLS_CA, value: /etc/omnibus/store/ca.crt}
{{- end }}
{{- end }}
{{- if ne .part "planner" }}
- name: NODE
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: OMNIBUS_SIDECAR_NODE, value: "$(NODE)-{{ include "omnibus.mark" $root }}"}
- {name: OMNIBUS_SIDECAR_SOCKET, value: "/dev/shm/omnibus-{{ include "omnibus.mark" $root }}/sidecar.sock"}
{{- end }}
{{- if $bus }}
- {name: OMNIBUS_BUS_URL, value: {{ include "omnibus.busUrl" $root | quote }}}
{{- if $root.Values.nats.tls.caSecret }}
- {name: OMNIBUS_BUS_TLS_CA, value: /etc/omnibus/bus/ca.crt}
{{- end }}
{{- end }}
- {name: OMNIBUS_SERVICE_METRICS_HOST, value: {{ $root.Values.network.listen | quote }}}
- {name: OMNIBUS_SERVICE_METRICS_PORT, value: "9090"}
- {name: OMNIBUS_SERVICE_DRAIN, value: {{ .own.drainSeconds | default 10 | quote }}}
{{- range $name, $value := $told }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{/* What every container may not do. */}}
{{- define "omnibus.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "omnibus.pod.security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Secrets that a service reads as files, by the place below /etc/omnibus: dict "root" $ "part" "gateway". */}}
{{- define "omnibus.secrets" -}}
{{- $found := dict -}}
{{- $values := .root.Values -}}
{{- if include "omnibus.onBus" . }}{{ with $values.nats.tls.caSecret }}{{ $_ := set $found "bus" . }}{{ end }}{{ end -}}
{{- if has .part (list "gateway" "planner") }}{{ with $values.valkey.tls.caSecret }}{{ $_ := set $found "store" . }}{{ end }}{{ end -}}
{{- if eq .part "sidecar" }}{{ with $values.sidecar.tls.secret }}{{ $_ := set $found "tls" . }}{{ end }}{{ end -}}
{{- if eq .part "gateway" -}}
{{- with $values.gateway.tls.secret }}{{ $_ := set $found "tls" . }}{{ end -}}
{{- with $values.gateway.keys.secret }}{{ $_ := set $found "keys" . }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "omnibus.image" -}}
{{ .root.Values.image.repository }}-{{ .part }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ with index .root.Values.image.digests .part }}@{{ . }}{{ end }}
{{- end -}}

{{/* Health of a service: of its loop, and whether it has started. */}}
{{- define "omnibus.probes" -}}
startupProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (.startSeconds | default 300) 5 }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /health, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 4
{{- end -}}

{{/* Where the node's shared memory is: the arena and the socket of its sidecar. */}}
{{- define "omnibus.shm" -}}
- name: shm
{{ toYaml .Values.sidecar.arena.volume | indent 2 }}
{{- end -}}

{{/* The pod of a service of ours.
     dict "root" $ "part" "gateway" "own" its-values "labels" more-labels "account" bool
          "env" "mounts" "volumes" "init" YAML lists "ports" list "args" */}}
{{- define "omnibus.pod" -}}
{{- $root := .root -}}
{{- $tensors := ne .part "planner" -}}
metadata:
  labels:
    {{- include "omnibus.selector" . | nindent 4 }}
    omnibus/metrics: "true"
    {{- if and $tensors (ne .part "sidecar") }}
    omnibus/tensors: "true"
    {{- end }}
    {{- with .labels }}{{ . | nindent 4 }}{{ end }}
  {{- with .annotations }}
  annotations: {{- . | nindent 4 }}
  {{- end }}
spec:
{{- $spec := include "omnibus.spec" . | fromYaml }}
{{- with $spec.Error }}{{ fail . }}{{ end }}
{{ mergeOverwrite $spec (deepCopy (.own.pod | default dict)) | toYaml | indent 2 }}
{{- end -}}

{{- define "omnibus.spec" -}}
{{- $root := .root -}}
{{- $tensors := ne .part "planner" -}}
serviceAccountName: {{ include "omnibus.fullname" $root }}-{{ .account | default "service" }}
automountServiceAccountToken: {{ eq (.account | default "") "planner" }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add (.own.drainSeconds | default 10) 20 }}
securityContext: {{- include "omnibus.pod.security" . | nindent 2 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- $apart := or (not $tensors) (eq (include "omnibus.oneNode" $root) "off") }}
{{- if not (or $apart (eq .part "sidecar")) }}
affinity: {podAffinity: {{ include "omnibus.affinity" . }}}
{{- end }}
{{- if and $apart (ne .part "sidecar") }}
topologySpreadConstraints:
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "omnibus.selector" $ | nindent 8 }}
{{- end }}
{{- end }}
{{- with .init }}
initContainers: {{- . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .part }}
    image: {{ include "omnibus.image" . }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    {{- with .own.command }}
    command: {{ toJson . }}
    {{- end }}
    securityContext: {{- include "omnibus.container.security" . | nindent 6 }}
    env: {{- include "omnibus.env" . | trim | nindent 6 }}
    {{- with .env }}{{ . | nindent 6 }}{{ end }}
    ports:
      - {name: metrics, containerPort: 9090}
      {{- range .ports }}
      - {{ toJson . }}
      {{- end }}
    {{- include "omnibus.probes" .own | nindent 4 }}
    {{- if eq .part "gateway" }}
    lifecycle: {preStop: {exec: {command: [sleep, "5"]}}} # until nobody sends requests here any more
    {{- end }}
    resources: {{ toJson .own.resources }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- if $tensors }}
      - {name: shm, mountPath: /dev/shm}
      {{- end }}
      {{- range $place, $secret := include "omnibus.secrets" . | fromJson }}
      - {name: {{ $place }}, mountPath: /etc/omnibus/{{ $place }}, readOnly: true}
      {{- end }}
      {{- with .mounts }}{{ . | nindent 6 }}{{ end }}
volumes:
  - name: tmp
    emptyDir: {}
  {{- if $tensors }}
  {{- include "omnibus.shm" $root | nindent 2 }}
  {{- end }}
  {{- range $place, $secret := include "omnibus.secrets" . | fromJson }}
  - name: {{ $place }}
    secret: {secretName: {{ $secret }}}
  {{- end }}
  {{- with .volumes }}{{ . | nindent 2 }}{{ end }}
{{- end -}}

{{/* A claim of a volume: dict "root" $ "part" "media" "own" {size, storageClass, accessMode}. */}}
{{- define "omnibus.claim" -}}
accessModes: [{{ .accessMode | default "ReadWriteOnce" }}]
{{- with .storageClass }}
storageClassName: {{ . | quote }}
{{- end }}
resources: {requests: {storage: {{ .size }}}}
{{- end -}}
