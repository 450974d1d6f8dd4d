// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// unregistering names the templates whose nodes may register without the unregistered taint, and the remedy.
func unregistering(nodeClass *v1alpha1.ClusterAPINodeClass, templates []template.Template) string {
	var remedies []string
	affected := 0
	for _, tmpl := range templates {
		remedy := ""
		switch b := tmpl.Bootstrap; {
		case b.ConfigTemplate != nil:
			kind := machine.ClonedKind(b.ConfigTemplate.GroupVersionKind()).GroupKind()
			if machine.Registers(nodeClass, kind) {
				continue
			}
			remedy = fmt.Sprintf("set spec.bootstrapPatches for %s (%s) that write the taints", kind.Kind, kind.Group)
		case b.DataSecretName != "":
			remedy = fmt.Sprintf("let the data in Secret %s register nodes with it", b.DataSecretName)
		default:
			continue
		}
		affected++
		if !slices.Contains(remedies, remedy) {
			remedies = append(remedies, remedy)
		}
	}
	if affected == 0 {
		return ""
	}
	slices.Sort(remedies)
	return fmt.Sprintf("nodes of %d of %s may register without the taint %s, and get it only as they appear; %s",
		affected, english.Plural(len(templates), "template", "templates"), karpv1.UnregisteredTaintKey,
		strings.Join(remedies[:min(len(remedies), maxProblems)], ", and "))
}

// unwritten names the fields of spec.kubelet that don't reach the kubelets of some templates, and the remedy.
func unwritten(nodeClass *v1alpha1.ClusterAPINodeClass, templates []template.Template) string {
	if nodeClass.Spec.Kubelet == nil {
		return ""
	}
	var fields, remedies []string
	affected := 0
	for _, tmpl := range templates {
		var lacking []v1alpha1.KubeletField
		remedy := ""
		switch b := tmpl.Bootstrap; {
		case b.ConfigTemplate != nil:
			kind := machine.ClonedKind(b.ConfigTemplate.GroupVersionKind()).GroupKind()
			lacking = machine.Unwritten(nodeClass, kind)
			variables := "kubeletArgs or kubeletArgList"
			if slices.ContainsFunc(lacking, func(f v1alpha1.KubeletField) bool { return !slices.Contains(v1alpha1.KubeletFields, f) }) {
				variables += ", and kubeletConfig"
			}
			remedy = fmt.Sprintf("set spec.bootstrapPatches for %s (%s) that write %s", kind.Kind, kind.Group, variables)
		case b.DataSecretName != "":
			lacking = nodeClass.Spec.Kubelet.Fields()
			remedy = fmt.Sprintf("let the data in Secret %s have them", b.DataSecretName)
		}
		if len(lacking) == 0 {
			continue
		}
		affected++
		for _, field := range lacking {
			if !slices.Contains(fields, string(field)) {
				fields = append(fields, string(field))
			}
		}
		if !slices.Contains(remedies, remedy) {
			remedies = append(remedies, remedy)
		}
	}
	if affected == 0 {
		return ""
	}
	slices.Sort(fields)
	slices.Sort(remedies)
	return fmt.Sprintf("Karpenter doesn't write %s of spec.kubelet for nodes of %d of %s; %s",
		english.OxfordWordSeries(fields, "and"), affected, english.Plural(len(templates), "template", "templates"),
		strings.Join(remedies[:min(len(remedies), maxProblems)], ", and "))
}
