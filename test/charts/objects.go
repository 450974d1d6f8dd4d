// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// Fields of a Deployment.
var (
	podSpec  = []string{"spec", "template", "spec"}
	operator = slices.Concat(podSpec, []string{"containers", "[name=operator]"})
)

// Lines that several templates have.
const (
	eachShard  = `range $shard := $.Values.shards | default (list (dict "name" "" "selector" ""))`
	shardName  = `autonode-operator{{ with $shard.name }}-{{ . }}{{ end }}`
	shardLabel = `{{- with $shard.name }}
autonode.io/shard: {{ . | quote }}
{{- end }}`
)

// templateOf returns the chart that an object belongs to, and its template there. An object that Helm makes itself belongs to none.
func templateOf(object *yaml.RNode) (chart, text string, err error) {
	t := &template{RNode: object.Copy()}
	scalars(t.YNode(), func(node *yaml.Node) {
		node.Value = strings.ReplaceAll(node.Value, "{{", openBraces)
		if node.Value == namespace {
			node.Value = t.mark("{{ $.Release.Namespace }}")
		}
	})
	begin := ""
	switch kind := object.GetKind(); kind {
	case "Namespace":
		return "", "", nil
	case "CustomResourceDefinition":
		t.keep()
		t.lines("{{- with $.Values.annotations }}\n{{- toYaml . | nindent %d }}\n{{- end }}", "metadata", "annotations")
		t.lines("{{- with $.Values.labels }}\n{{- toYaml . | nindent %d }}\n{{- end }}", "metadata", "labels")
		text, err = t.text()
		return CRDs, text, err
	case "Deployment":
		t.deployment()
		begin = eachShard
	case "PodDisruptionBudget":
		t.value(shardName, "metadata", "name")
		t.lines(shardLabel, "metadata", "labels")
		t.lines(shardLabel, "spec", "selector", "matchLabels")
		begin = eachShard
	case "NetworkPolicy":
		t.lines("{{- with $.Values.networkPolicy.extraEgress }}\n{{- toYaml . | nindent %d }}\n{{- end }}", "spec", "egress")
		begin = "if $.Values.networkPolicy.enabled"
	case "PodMonitor", "PrometheusRule":
		t.lines("{{- with $.Values.monitoring.labels }}\n{{- toYaml . | nindent %d }}\n{{- end }}", "metadata", "labels")
		begin = "if $.Values.monitoring.enabled"
	case "ConfigMap":
		for _, dashboard := range dashboards {
			t.value(`{{ $.Files.Get "files/`+dashboard+`" | toJson }}`, "data", strings.Replace(dashboard, "dashboard", "autonode", 1))
		}
		begin = "if $.Values.monitoring.enabled"
	}
	if guards(object) {
		t.keep()
		text, err = t.text()
		return CRDs, text, err
	}
	t.lines(`{{- include "autonode.labels" $ | nindent %d }}`, "metadata", "labels")
	if text, err = t.text(); err != nil || begin == "" {
		return Operator, text, err
	}
	if begin == eachShard {
		text = "---\n" + text
	}
	return Operator, "{{- " + begin + " }}\n" + text + "{{- end }}\n", nil
}

// guards reports whether an object is of the policy that guards the deletion of CRDs. It lives as long as they do.
func guards(object *yaml.RNode) bool {
	return strings.HasPrefix(object.GetKind(), "ValidatingAdmissionPolicy") && strings.HasPrefix(object.GetName(), "deletion.")
}

// keep lets Helm leave an object where it is when its release is uninstalled.
func (t *template) keep() {
	if _, err := t.Pipe(yaml.LookupCreate(yaml.MappingNode, "metadata", "annotations")); err != nil && t.err == nil {
		t.err = err
	}
	t.lines("helm.sh/resource-policy: keep", "metadata", "annotations")
}

func (t *template) deployment() {
	t.value(shardName, "metadata", "name")
	t.lines(shardLabel, "metadata", "labels")
	t.value("{{ $.Values.replicas }}", "spec", "replicas")
	t.lines(shardLabel, "spec", "selector", "matchLabels")
	t.lines(shardLabel+"\n{{- with $.Values.podLabels }}\n{{- toYaml . | nindent %d }}\n{{- end }}", "spec", "template", "metadata", "labels")
	t.lines(`{{- with include "autonode.karpenterSettings" $ }}
checksum/karpenter-settings: {{ . | sha256sum }}
{{- end }}
{{- with $.Values.podAnnotations }}
{{- toYaml . | nindent %d }}
{{- end }}`, "spec", "template", "metadata", "annotations")

	t.lines("{{- with $.Values.priorityClassName }}\npriorityClassName: {{ . }}\n{{- end }}", podSpec...)
	for _, field := range []string{"imagePullSecrets", "nodeSelector", "tolerations"} {
		t.lines("{{- with $.Values."+field+" }}\n"+field+":\n  {{- toYaml . | nindent %i }}\n{{- end }}", podSpec...)
	}
	// The pods of one shard keep away from each other.
	t.lines(shardLabel, slices.Concat(podSpec, []string{"affinity", "podAntiAffinity", "preferredDuringSchedulingIgnoredDuringExecution",
		"[weight=100]", "podAffinityTerm", "labelSelector", "matchLabels"})...)
	t.lines(shardLabel, slices.Concat(podSpec, []string{"topologySpreadConstraints", "[maxSkew=1]", "labelSelector", "matchLabels"})...)
	t.around("affinity", "{{- with $.Values.affinity }}\naffinity:\n  {{- toYaml . | nindent %i }}\n{{- else }}", "{{- end }}", podSpec...)

	field := func(name ...string) []string { return slices.Concat(operator, name) }
	t.value(`{{ include "autonode.image" $ }}`, field("image")...)
	t.at(field("image")...).YNode().LineComment = ""
	t.value("{{ $.Values.image.pullPolicy }}", field("imagePullPolicy")...)
	t.value("{{- toYaml $.Values.resources | nindent 10 }}", field("resources")...)
	t.lines(`{{- with $shard.selector }}
- {{ printf "--hosted-cluster-selector=%s" . | quote }}
{{- end }}
- --log-level={{ $.Values.logLevel }}
{{- with $.Values.guestNetworks }}
- --guest-networks={{ join "," . }}
{{- end }}
{{- with $.Values.registryNetworks }}
- --registry-networks={{ join "," . }}
{{- end }}
{{- with $.Values.templateGroups }}
- {{ printf "--template-groups=%s" (join "," .) | quote }}
{{- end }}
{{- if include "autonode.karpenterSettings" $ }}
- --karpenter-settings=/etc/autonode/karpenter/settings.yaml
{{- end }}
{{- range $.Values.extraArgs }}
- {{ . | quote }}
{{- end }}`, field("args")...)
	t.lines("{{- with $.Values.extraEnv }}\n{{- toYaml . | nindent %d }}\n{{- end }}", field("env")...)
	t.lines(`{{- if include "autonode.karpenterSettings" $ }}
- name: karpenter-settings
  mountPath: /etc/autonode/karpenter
  readOnly: true
{{- end }}
{{- with $.Values.extraVolumeMounts }}
{{- toYaml . | nindent %d }}
{{- end }}`, field("volumeMounts")...)
	t.lines(`{{- if include "autonode.karpenterSettings" $ }}
- name: karpenter-settings
  configMap:
    name: autonode-karpenter-settings
{{- end }}
{{- with $.Values.extraVolumes }}
{{- toYaml . | nindent %d }}
{{- end }}`, slices.Concat(podSpec, []string{"volumes"})...)
}
