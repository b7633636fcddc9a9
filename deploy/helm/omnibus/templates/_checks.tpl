{{/* What the schema cannot say: values that contradict each other are refused, and the message says what to do. */}}
{{- define "omnibus.checks" -}}
{{- $mode := include "omnibus.oneNode" . -}}
{{- $several := or .Values.gateway.autoscaling.enabled (gt (int .Values.gateway.replicas) 1) -}}
{{- with .Values.gateway.media -}}
{{- if and $several (eq .kind "emptyDir") -}}
{{- fail "gateway.media.kind=emptyDir is for one gateway: files and videos of one would be unknown to the others. Set gateway.replicas=1 without autoscaling, or use a claim" -}}
{{- end -}}
{{- if and $several (eq $mode "off") (not .claim) (include "omnibus.onOneMachine" .) -}}
{{- fail "gateways on several machines share their media: set gateway.media.accessMode=ReadWriteMany, or gateway.media.claim" -}}
{{- end -}}
{{- end -}}
{{- range $server := list "nats" "valkey" -}}
{{- $own := index $.Values $server -}}
{{- if and (not $own.enabled) (not $own.url) -}}
{{- fail (printf "%s.enabled=false needs %s.url, the URL of your own server" $server $server) -}}
{{- end -}}
{{- if and $own.enabled $own.url -}}
{{- fail (printf "%s.url is for a server of your own: set %s.enabled=false as well" $server $server) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.valkey.tls.serverSecret (gt (int .Values.valkey.replicas) 1) -}}
{{- fail "valkey.tls.serverSecret is for one server: set valkey.replicas=1, or use servers of your own with valkey.url=rediss+sentinel://" -}}
{{- end -}}
{{- if and (gt (int .Values.valkey.replicas) 1) (not .Values.valkey.persistence.enabled) -}}
{{- fail "valkey.replicas needs valkey.persistence.enabled: a server that starts without its data, as primary, would empty its replicas" -}}
{{- end -}}
{{- if eq (int .Values.nats.replicas) 2 -}}
{{- fail "nats.replicas=2 is less available than 1, for neither has a majority alone: set 1, 3 or 5" -}}
{{- end -}}
{{- if .Values.nats.enabled -}}
{{- $asked := merge dict (.Values.gateway.settings.bus | default dict) (.Values.settings.bus | default dict) (dict "record_bytes" 1073741824 "dead_bytes" 67108864 "response_bytes" 268435456) -}}
{{- $power := dict "KB" 1024 "MB" 1048576 "GB" 1073741824 "TB" 1099511627776 -}}
{{- $room := mul (regexFind "^[0-9]+" .Values.nats.fileStore) (index $power (regexFind "..$" .Values.nats.fileStore)) -}}
{{- if gt (add $asked.record_bytes $asked.dead_bytes $asked.response_bytes) $room -}}
{{- fail (printf "nats.fileStore=%s has no room for its streams, %d bytes of settings.bus.record_bytes, dead_bytes and response_bytes: raise it, or lower them" .Values.nats.fileStore (add $asked.record_bytes $asked.dead_bytes $asked.response_bytes)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.checkpoints -}}
{{- if and (eq $mode "off") (not .claim) (include "omnibus.onOneMachine" .) -}}
{{- fail "executors on several machines share their checkpoints: set checkpoints.accessMode=ReadOnlyMany or ReadWriteMany, or checkpoints.claim, or another checkpoints.kind" -}}
{{- end -}}
{{- if and (eq .kind "hostPath") (not .hostPath) -}}
{{- fail "checkpoints.kind=hostPath needs checkpoints.hostPath, a directory that every machine with executors has" -}}
{{- end -}}
{{- if and .tiny (ne .kind "emptyDir") -}}
{{- fail "checkpoints.tiny builds tiny checkpoints beside each executor: set checkpoints.kind=emptyDir" -}}
{{- end -}}
{{- if and .download (eq .kind "none") -}}
{{- fail "checkpoints.download needs a place for what is downloaded: set checkpoints.kind" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.sidecar.tls.secret (eq $mode "required") -}}
{{- fail "sidecar.tls.secret is for tensors that cross between machines: set placement.oneNode=preferred or off, or leave it empty" -}}
{{- end -}}
{{- if and .Values.credentials.existingSecret (ne $mode "required") -}}
{{- $known := (lookup "v1" "Secret" .Release.Namespace .Values.credentials.existingSecret).data | default dict -}}
{{- if and $known (not $known.nodes) -}}
{{- fail (printf "the secret %s has no key nodes, by which sidecars know each other: add one (openssl rand -hex 32), or set placement.oneNode=required" .Values.credentials.existingSecret) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.models.existingConfigMap .Values.models.models -}}
{{- fail "models.models and models.existingConfigMap both declare models: leave one of them empty" -}}
{{- end -}}
{{- if ne .Values.executors.scaling "planner" -}}
{{- if .Values.models.existingConfigMap -}}
{{- fail (printf "executors.scaling=%s makes executors of models.models: declare them there, or let the planner scale" .Values.executors.scaling) -}}
{{- end -}}
{{- range $model, $declared := .Values.models.models -}}
{{- if or $declared.planned (not $declared.options) -}}
{{- fail (printf "executors.scaling=%s needs models.models.%s.options; only executors.scaling=planner runs planned models" $.Values.executors.scaling $model) -}}
{{- end -}}
{{- range $option, $runs := $declared.options -}}
{{- if not (and $runs.components $runs.service) -}}
{{- fail (printf "executors.scaling=%s needs components and service of models.models.%s.options.%s" $.Values.executors.scaling $model $option) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.executors.scaling "keda") (not .Values.executors.keda.prometheus) -}}
{{- fail "executors.scaling=keda needs executors.keda.prometheus, the URL of the Prometheus that it asks" -}}
{{- end -}}
{{- end -}}
{{- range $key, $option := .Values.executors.options -}}
{{- if and $option.group (not ($.Capabilities.APIVersions.Has "leaderworkerset.x-k8s.io/v1")) -}}
{{- fail (printf "executors.options.%s.group needs LeaderWorkerSet, which this cluster does not have: install it, or leave group out" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- fail "metrics.serviceMonitor needs the Prometheus operator, which this cluster does not have: install it, or set it to false" -}}
{{- end -}}
{{- end -}}

{{/* Variables that values may not set, for what listens is protected by others that belong to them: dict of variables. */}}
{{- define "omnibus.checks.env" -}}
{{- range $name, $value := . -}}
{{- if regexMatch "^OMNIBUS_SIDECAR_(SOCKET|NODE|HOST|PORT|ADVERTISE|SECRET_FILE|TLS_.*)$" $name -}}
{{- fail (printf "%s is set by the chart: use placement.oneNode, sidecar.tls.secret and credentials.existingSecret" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
