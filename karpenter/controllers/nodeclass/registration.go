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
		affected, english.Plural(len(templates), "template", "templates"), karpv1.UnregisteredTaintKey, strings.Join(remedies[:min(len(remedies), maxProblems)], ", and "))
}
