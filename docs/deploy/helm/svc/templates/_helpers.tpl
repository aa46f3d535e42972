{{- define "svc.labels" -}}
app.kubernetes.io/name: svc
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "svc.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* .name in at most .limit characters: a longer one, and one that needs .more to be unique, ends in a hash. */ -}}
{{- define "svc.shortName" -}}
{{- if or .more (gt (len .name) (int .limit)) -}}
{{ .name | trunc (int (sub .limit 9)) | trimSuffix "-" }}-{{ printf "%s %s" .name .more | sha256sum | trunc 8 }}
{{- else -}}
{{ .name }}
{{- end }}
{{- end }}

{{- /* The name of the CronJob of .schedules[.index]; a later one for the same recipe is told apart by its entry. Jobs
get 11 characters more, pods of exports 6 besides, and 63 is the most. */ -}}
{{- define "svc.cronJobName" -}}
{{- $entry := index .schedules .index -}}
{{- $recipe := $entry.recipe | lower | replace "_" "-" -}}
{{- $more := "" -}}
{{- range $place, $other := .schedules -}}
{{- if and (lt $place $.index) (eq ($other.recipe | lower | replace "_" "-") $recipe) -}}
{{- $more = toJson $entry -}}
{{- end -}}
{{- end -}}
{{- $name := printf "%s-%s-%s" .release .step $recipe -}}
{{- include "svc.shortName" (dict "name" $name "limit" (ternary 46 52 (eq .step "export")) "more" $more) -}}
{{- end }}

{{- define "svc.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "svc.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "svc.volumes" -}}
- name: recipes
  configMap: {name: {{ .Release.Name }}-recipes}
- name: tmp
  emptyDir: {}
{{- with .Values.existingClaim }}
- name: files
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end }}

{{- define "svc.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "svc.identity" -}}
{{- /* Nothing in svc talks to the cluster; a named account carries a cloud's workload identity. */ -}}
automountServiceAccountToken: false
{{- with .Values.serviceAccount.name }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}
