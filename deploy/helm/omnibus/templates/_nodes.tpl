{{/* Several machines: where gateways and executors are placed, and how sidecars pull tensors from each other. */}}

{{/* placement.oneNode as required, preferred or off. Once it was true or false: required and off. */}}
{{- define "omnibus.oneNode" -}}
{{- $asked := .Values.placement.oneNode -}}
{{- if kindIs "bool" $asked }}{{ ternary "required" "off" $asked }}{{ else }}{{ $asked | default "preferred" }}{{ end -}}
{{- end -}}

{{/* "true" where sidecars are served to those of other machines, else empty. */}}
{{- define "omnibus.pulls" -}}
{{- if ne (include "omnibus.oneNode" .) "required" }}true{{ end -}}
{{- end -}}

{{/* "true" for a claim that the pods of one machine alone can mount: its values. */}}
{{- define "omnibus.onOneMachine" -}}
{{- if and (eq .kind "claim") (has .accessMode (list "ReadWriteOnce" "ReadWriteOncePod")) }}true{{ end -}}
{{- end -}}

{{/* A term of affinity for the machines of pods with these labels: dict "root" $ "labels" dict. */}}
{{- define "omnibus.near" -}}
{{- $labels := merge (dict "app.kubernetes.io/instance" .root.Release.Name) .labels -}}
{{- toJson (dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels)) -}}
{{- end -}}

{{/* A text as the planner writes it into the value of a label. */}}
{{- define "omnibus.label" -}}
{{ regexReplaceAll "[^A-Za-z0-9._-]+" . "-" | trunc 63 | trimAll "-._" }}
{{- end -}}

{{/* Affinity of a gateway or executor, as JSON: dict "root" $ "part" "llm" ["model" its-model]. Where nothing has to be
     together, an executor is drawn to those of its model, for most bytes cross there, and less to the gateways. The
     planner puts the model in for {model}. */}}
{{- define "omnibus.affinity" -}}
{{- $mode := include "omnibus.oneNode" .root -}}
{{- $gateway := eq .part "gateway" -}}
{{- $own := ternary (dict "app.kubernetes.io/component" "gateway") (dict "omnibus/executors" "true") $gateway -}}
{{- $mounts := ternary .root.Values.gateway.media .root.Values.checkpoints $gateway -}}
{{- $must := list -}}
{{- $may := list -}}
{{- if eq $mode "required" -}}
{{- $must = list (include "omnibus.near" (dict "root" .root "labels" (dict "omnibus/tensors" "true")) | fromJson) -}}
{{- else if eq $mode "preferred" -}}
{{- if include "omnibus.onOneMachine" $mounts -}}
{{- $must = list (include "omnibus.near" (dict "root" .root "labels" $own) | fromJson) -}}
{{- end -}}
{{- $model := empty .model | ternary "{model}" (include "omnibus.label" (.model | default "")) -}}
{{- $weights := ternary (dict "100" (dict "omnibus/tensors" "true")) (dict "100" (dict "omnibus/model" $model) "10" (dict "app.kubernetes.io/component" "gateway")) $gateway -}}
{{- range $weight, $labels := $weights -}}
{{- $may = append $may (dict "weight" (int $weight) "podAffinityTerm" (include "omnibus.near" (dict "root" $.root "labels" $labels) | fromJson)) -}}
{{- end -}}
{{- end -}}
{{- $found := dict -}}
{{- with $must }}{{ $_ := set $found "requiredDuringSchedulingIgnoredDuringExecution" . }}{{ end -}}
{{- with $may }}{{ $_ := set $found "preferredDuringSchedulingIgnoredDuringExecution" . }}{{ end -}}
{{- toJson $found -}}
{{- end -}}

{{/* What a sidecar is told of its listener, which never comes without the secret. */}}
{{- define "omnibus.sidecar.env" -}}
{{- if include "omnibus.pulls" . }}
- name: OMNIBUS_SIDECAR_HOST
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: OMNIBUS_SIDECAR_PORT, value: "7400"}
- {name: OMNIBUS_SIDECAR_SECRET_FILE, value: /etc/omnibus/nodes/secret}
{{- if .Values.sidecar.tls.secret }}
- {name: OMNIBUS_SIDECAR_TLS_CA, value: /etc/omnibus/tls/ca.crt}
- {name: OMNIBUS_SIDECAR_TLS_CERT, value: /etc/omnibus/tls/tls.crt}
- {name: OMNIBUS_SIDECAR_TLS_KEY, value: /etc/omnibus/tls/tls.key}
{{- end }}
{{- end }}
{{- end -}}

{{- define "omnibus.sidecar.mounts" -}}
{{- if include "omnibus.pulls" . }}
- {name: nodes, mountPath: /etc/omnibus/nodes, readOnly: true}
{{- end }}
{{- end -}}

{{- define "omnibus.sidecar.volumes" -}}
{{- if include "omnibus.pulls" . }}
- name: nodes
  secret: {secretName: {{ include "omnibus.secret" . }}, defaultMode: 0440, items: [{key: nodes, path: secret}]}
{{- end }}
{{- end -}}
