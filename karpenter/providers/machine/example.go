// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Chosen has the choices for an example machine.
type Chosen struct {
	// ClusterName of the Cluster that the machine would join.
	ClusterName string
	// Version without a leading v.
	Version string
	// Zone is the value of the node's zone label, and FailureDomain that of the Machine; it may be empty.
	Zone, FailureDomain string
	CapacityType        string
	// ReservationID of a reserved machine.
	ReservationID string
}

const example = "example"

// Example builds the machine of a NodeClaim "example", which has no labels or taints of its own. A patch may refer to
// any image: its value is the image's name. The error is a *BuildError.
func Example(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, chosen Chosen) (*Objects, error) {
	plan := Plan{
		NodeClaim: &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: example, UID: example}},
		Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
			Namespace: tmpl.Source.Namespace, Name: cmp.Or(chosen.ClusterName, example),
		}},
		Template:         *tmpl,
		BootstrapPatches: nodeClass.Spec.BootstrapPatches,
		Version:          chosen.Version,
		FailureDomain:    chosen.FailureDomain,
		NodeLabels: map[string]string{
			corev1.LabelInstanceTypeStable: tmpl.InstanceType,
			corev1.LabelTopologyZone:       chosen.Zone,
			karpv1.CapacityTypeLabelKey:    chosen.CapacityType,
		},
		Kubelet: tmpl.Kubelet(nodeClass.Spec.Kubelet),
		MaxPods: int32(min(tmpl.MaxPods(nodeClass.Spec.Kubelet), 1<<30)),
		example: true,
	}
	if chosen.ReservationID != "" {
		plan.NodeLabels[v1alpha1.ReservationIDLabel] = chosen.ReservationID
	}
	if !tmpl.Bootstrap.IsDefined() {
		plan.Template.Bootstrap.DataSecretName = example
	}
	return Build(plan)
}

// PatchedKubelet returns the kubelet settings of a template's machines where patches of the node class change its bootstrap,
// and false where none applies. Settings that depend on a machine's zone or capacity type are unread.
func PatchedKubelet(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (kubelet.Settings, bool) {
	bootstrap := tmpl.Bootstrap.ConfigTemplate
	if bootstrap == nil || len(patchesFor(nodeClass.Spec.BootstrapPatches, bootstrap.GroupVersionKind().GroupKind())) == 0 {
		return kubelet.Settings{}, false
	}
	plain := nodeClass.DeepCopy()
	plain.Spec.BootstrapPatches = nil
	var settings kubelet.Settings
	for i, chosen := range examples(tmpl) {
		without, err := Example(plain, tmpl, chosen)
		if err != nil {
			return kubelet.Settings{}, false // CheckPatches reports it
		}
		with, err := Example(nodeClass, tmpl, chosen)
		if err != nil {
			return kubelet.Settings{}, false
		}
		patched := kubelet.Patch(bootstrap, without.Bootstrap, with.Bootstrap)
		switch {
		case i == 0:
			settings = patched
		case !equality.Semantic.DeepEqual(settings, patched):
			settings.Unread = append(settings.Unread, whereBootstrap(bootstrap.GroupVersionKind().GroupKind())+
				": the kubelet's settings depend on the zone or capacity type that is chosen")
			return settings, true
		}
	}
	return settings, true
}

// examples are choices that differ in every value that a patch may refer to and that a template leaves open.
func examples(tmpl *template.Template) (all []Chosen) {
	for _, capacityType := range tmpl.CapacityTypes() {
		for _, zone := range []string{example, example + "-2"} {
			all = append(all, Chosen{Version: "1.36.3", Zone: zone, FailureDomain: zone, CapacityType: capacityType})
		}
	}
	return all
}

// CheckPatches applies the patches of a node class and of a template to an example machine, once per capacity type of
// the template. The error is a *PatchError, or reports why the template can't be cloned or names its instances.
func CheckPatches(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) error {
	if err := checkNaming(tmpl.Infrastructure); err != nil {
		return err
	}
	bootstrap := tmpl.Bootstrap.ConfigTemplate
	if tmpl.Patches.IsEmpty() &&
		(bootstrap == nil || len(patchesFor(nodeClass.Spec.BootstrapPatches, bootstrap.GroupVersionKind().GroupKind())) == 0) {
		return nil
	}
	for _, capacityType := range tmpl.CapacityTypes() {
		chosen := Chosen{Version: "1.36.3", Zone: example, FailureDomain: example, CapacityType: capacityType}
		if capacityType == karpv1.CapacityTypeReserved {
			chosen.ReservationID = example
		}
		_, err := Example(nodeClass, tmpl, chosen)
		if err != nil {
			return checkError(err)
		}
	}
	return nil
}

// checkError leaves out the names of an example's objects.
func checkError(err error) error {
	var patch *PatchError
	if errors.As(err, &patch) {
		return patch
	}
	return err
}
