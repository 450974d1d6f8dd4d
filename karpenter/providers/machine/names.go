// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// NodeNames returns the names that a Machine's node has as a rule: the Machine's, or that of its infrastructure machine.
func NodeNames(m *clusterv1.Machine) []string {
	return v1alpha1.NodeNames(m.Name, m.Spec.InfrastructureRef.Name)
}

// InstanceName returns the name of a NodeClaim's Machine, infrastructure machine and bootstrap config, and of its node as a rule. All that
// is left once the Cluster is gone has the NodeClaim's name.
func (p *Provider) InstanceName(ctx context.Context, nodeClaim string) (string, error) {
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.ClusterName}
	switch err := p.Management.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return nodeClaim, nil
	case err != nil:
		return "", fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	return v1alpha1.InstanceName(cluster.UID, nodeClaim), nil
}

// shortens matches the functions of sprig that lose a part of a name.
var shortens = regexp.MustCompile(`\b(trunc|substr|abbrev|abbrevboth|initials|adler32sum|sha\d+sum)\b`)

// checkNaming returns an error for a template that names instances, as Cluster API Provider vSphere's do, and leaves out a part of the
// Machine's name: two Machines would share an instance, and a node.
func checkNaming(infrastructure *unstructured.Unstructured) error {
	for _, field := range []string{"naming", "namingStrategy"} {
		text, _, _ := unstructured.NestedString(infrastructure.Object, "spec", "template", "spec", field, "template")
		if text != "" && (!strings.Contains(text, ".machine.name") || shortens.MatchString(text)) {
			return fmt.Errorf("spec.template.spec.%s.template lets two Machines share an instance: it leaves out a part of .machine.name", field)
		}
	}
	return nil
}
