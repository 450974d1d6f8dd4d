// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util/secret"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Plan describes the machine of one NodeClaim. Build needs nothing else, and no API server.
type Plan struct {
	// NodeClaim of the machine. Every object gets its UID as a label, and its name behind a hash of the Cluster's UID.
	NodeClaim *karpv1.NodeClaim
	// Cluster that the machine joins. The objects are created in its namespace, the control-plane namespace.
	Cluster *clusterv1.Cluster
	// Template has the objects that the infrastructure machine and the bootstrap config are cloned from, or the name of a Secret with ready
	// bootstrap data, and a MachineDeployment's settings of its Machines.
	Template template.Template
	// Version of Kubernetes, with or without a leading v; empty leaves it to the templates.
	Version string
	// FailureDomain of the Cluster, empty for any.
	FailureDomain string
	// NodeLabels are the node's labels: resolved requirements and the NodeClaim's own labels.
	NodeLabels map[string]string
	// Annotations are added to the Machine, the infrastructure machine and the bootstrap config.
	Annotations map[string]string
	// BootstrapPatches of the node class; those for the bootstrap config's kind are applied.
	BootstrapPatches []v1alpha1.BootstrapPatches
	// Images of the payload for the node's version and architecture. Patches can refer to them.
	Images nodeimage.Images
	// Kubelet settings, for bootstrap kinds that are known or patched.
	Kubelet *v1alpha1.KubeletConfiguration
	// JoinWithin is the node's registration deadline and so the lifetime of its bootstrap token. 0 means the default.
	JoinWithin time.Duration
	// MaxPods of the node, 0 to leave it to the bootstrap template.
	MaxPods int32

	// example: no machine is made, and a patch may refer to any image.
	example bool
}

// Objects are the objects of a Plan. They are created in the order infrastructure, bootstrap, Machine.
type Objects struct {
	Infrastructure *unstructured.Unstructured
	// Bootstrap is nil when the Machine names a Secret.
	Bootstrap *unstructured.Unstructured
	Machine   *clusterv1.Machine
}

// BuildError is why a plan can't be rendered. A retry only helps after a template has changed.
type BuildError struct{ err error }

// Error names the object that can't be made.
func (e *BuildError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *BuildError) Unwrap() error { return e.err }

// reserved are the purposes of Secrets of Cluster API's, and of K3s', RKE2's and Talos' providers, which are named
// <cluster>-<purpose>. Bootstrap providers store bootstrap data in a Secret with the machine's name and overwrite an
// existing one: NodeClaim blue-ca would replace the CA of Cluster blue.
var reserved = []secret.Purpose{
	secret.Kubeconfig, secret.ClusterCA, secret.EtcdCA, secret.ServiceAccount, secret.FrontProxyCA, secret.APIServerEtcdClient,
	"cca", "token", "talos", "talosconfig",
}

// Build renders a plan. The result depends on nothing but the plan; the error is a *BuildError.
func Build(plan Plan) (*Objects, error) {
	objects, err := build(plan)
	if err != nil {
		return nil, &BuildError{err}
	}
	return objects, nil
}

func build(plan Plan) (*Objects, error) {
	prefix, name := v1alpha1.InstancePrefix(plan.Cluster.UID), v1alpha1.InstanceName(plan.Cluster.UID, plan.NodeClaim.Name)
	if plan.example {
		name = plan.NodeClaim.Name
	}
	source := plan.Template.Bootstrap
	switch {
	case plan.NodeClaim.Name == "" || plan.NodeClaim.UID == "":
		return nil, errors.New("building a machine: the NodeClaim has no name or UID yet")
	case slices.ContainsFunc(reserved, func(purpose secret.Purpose) bool {
		return strings.HasSuffix(plan.NodeClaim.Name, secret.Name("", purpose))
	}):
		return nil, fmt.Errorf("building a machine: a Secret of Cluster API's may have the name %s; create the NodeClaim with another name",
			plan.NodeClaim.Name)
	case plan.Cluster.UID == "" && !plan.example:
		return nil, errors.New("building a machine: the Cluster has no UID")
	case strings.HasPrefix(plan.NodeClaim.Name, prefix):
		return nil, fmt.Errorf("building a machine: the name %s begins like that of an infrastructure machine of Cluster %s; "+
			"create the NodeClaim with another name", plan.NodeClaim.Name, plan.Cluster.Name)
	case (source.ConfigTemplate == nil) == (source.DataSecretName == ""):
		return nil, errors.New("building a machine: exactly one of a bootstrap template and a data Secret is needed")
	case !slices.Contains([]string{"", v1alpha1.BootstrapDataFromKarpenter, v1alpha1.BootstrapDataFromProvider}, plan.bootstrapDataFrom()):
		return nil, fmt.Errorf("%s %s: annotation %s is %q; it has to be %s or %s",
			source.ConfigTemplate.GetKind(), source.ConfigTemplate.GetName(),
			v1alpha1.BootstrapDataAnnotation, plan.bootstrapDataFrom(), v1alpha1.BootstrapDataFromKarpenter, v1alpha1.BootstrapDataFromProvider)
	}
	machine := &clusterv1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       plan.Cluster.Namespace,
			Name:            name,
			Annotations:     map[string]string{},
			OwnerReferences: []metav1.OwnerReference{clusterOwner(plan.Cluster)},
			// Otherwise Cluster API adds it with a patch, and reconciles the Machine once more.
			Finalizers: []string{clusterv1.MachineFinalizer},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName:   plan.Cluster.Name,
			Version:       versionWithV(plan.Version),
			FailureDomain: plan.FailureDomain,
		},
	}
	if deployed := plan.Template.Machine; deployed != nil {
		maps.Copy(machine.Annotations, deployed.Annotations)
		machine.Spec.Deletion = deployed.Spec.Deletion
		machine.Spec.MinReadySeconds, machine.Spec.ReadinessGates = deployed.Spec.MinReadySeconds, deployed.Spec.ReadinessGates
		// Cluster API's webhook rejects taints while its feature gate MachineTaintPropagation is off, and a MachineDeployment with taints
		// proves that it was on. If it is off by now, the Machine is created without them.
		machine.Spec.Taints = deployed.Spec.Taints
	}
	maps.Copy(machine.Annotations, plan.Annotations)
	// Cluster API patches the Node of a Machine that has no controller in each of its reconciliations
	// (docs/internals/upstream/node-patches.md).
	machine.OwnerReferences[0].Controller = ptr.To(true)
	label(machine, plan)
	infrastructure, err := clone(plan, plan.Template.Infrastructure, machine, name)
	if err != nil {
		return nil, err
	}
	machine.Spec.InfrastructureRef = reference(infrastructure)
	objects := &Objects{Infrastructure: infrastructure, Machine: machine}
	if source.ConfigTemplate == nil {
		machine.Spec.Bootstrap.DataSecretName = ptr.To(source.DataSecretName)
	} else {
		if objects.Bootstrap, err = clone(plan, source.ConfigTemplate, machine, name); err != nil {
			return nil, err
		}
		machine.Spec.Bootstrap.ConfigRef = reference(objects.Bootstrap)
		if version := machine.Spec.Version; version != "" {
			// A patch may have set it in the config, and only the config shows that.
			annotations := objects.Bootstrap.GetAnnotations()
			annotations[v1alpha1.NodeVersionAnnotation] = version
			objects.Bootstrap.SetAnnotations(annotations)
		}
	}
	if err := register(objects, plan); err != nil {
		return nil, err
	}
	return objects, nil
}

// clone creates an object from a template, as Cluster API's MachineSet does, with the Machine's labels and annotations.
func clone(plan Plan, template *unstructured.Unstructured, machine *clusterv1.Machine, name string) (*unstructured.Unstructured, error) {
	_, found, err := unstructured.NestedMap(template.Object, "spec", "template")
	if err == nil && !found {
		err = errors.New("spec.template is missing")
	}
	var object *unstructured.Unstructured
	if err == nil {
		owner := clusterOwner(plan.Cluster)
		object, err = external.GenerateTemplate(&external.GenerateTemplateInput{
			Template: template,
			TemplateRef: &corev1.ObjectReference{
				APIVersion: template.GetAPIVersion(),
				Kind:       template.GetKind(),
				Namespace:  template.GetNamespace(),
				Name:       template.GetName(),
			},
			Namespace:   plan.Cluster.Namespace,
			Name:        name,
			ClusterName: plan.Cluster.Name,
			OwnerRef:    &owner,
			Labels:      machine.Labels,
			Annotations: machine.Annotations,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cloning %s %s: %w", template.GetKind(), template.GetName(), err)
	}
	return object, nil
}

// clusterOwner owns every object until Cluster API makes the Machine the controller of the others. So no object
// outlives the Cluster, and clusterctl moves all of them.
func clusterOwner(cluster *clusterv1.Cluster) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}
}

// machineLabelKeys are the node labels that the Machine gets too, for kubectl.
var machineLabelKeys = []string{
	karpv1.NodePoolLabelKey,
	karpv1.CapacityTypeLabelKey,
	corev1.LabelInstanceTypeStable,
	corev1.LabelTopologyZone,
	v1alpha1.ReservationIDLabel,
}

// label sets a Machine's labels, and the annotation that has the NodeClaim's name where the label can't.
func label(machine *clusterv1.Machine, plan Plan) {
	name := v1alpha1.NodeClaimLabelValue(plan.NodeClaim.Name)
	machine.Labels = map[string]string{}
	if plan.Template.Machine != nil {
		for key, value := range plan.Template.Machine.Labels {
			if !ownersLabel(key) {
				machine.Labels[key] = value
			}
		}
	}
	for _, key := range machineLabelKeys {
		if value, ok := plan.NodeLabels[key]; ok && len(validation.IsValidLabelValue(value)) == 0 {
			machine.Labels[key] = value
		}
	}
	machine.Labels[clusterv1.ClusterNameLabel] = plan.Cluster.Name
	machine.Labels[v1alpha1.NodeClaimLabel] = name
	machine.Labels[v1alpha1.NodeClaimUIDLabel] = string(plan.NodeClaim.UID)
	if plan.NodeClaim.Name != name {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.NodeClaimNameAnnotation, plan.NodeClaim.Name)
	}
}

// ownersLabel reports whether a label would make a Machine part of a MachineDeployment or a MachineSet.
func ownersLabel(key string) bool {
	switch key {
	case clusterv1.MachineDeploymentNameLabel, clusterv1.MachineSetNameLabel, clusterv1.MachineDeploymentUniqueLabel,
		clusterv1.MachineControlPlaneLabel:
		return true
	}
	return strings.HasPrefix(key, "topology.cluster.x-k8s.io/")
}

func reference(object *unstructured.Unstructured) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{
		APIGroup: object.GroupVersionKind().Group,
		Kind:     object.GetKind(),
		Name:     object.GetName(),
	}
}

// versionWithV writes a version as Cluster API does.
func versionWithV(version string) string {
	if version == "" {
		return ""
	}
	return "v" + strings.TrimPrefix(version, "v")
}

// ClonedKind is the kind that a template is cloned into.
func ClonedKind(template schema.GroupVersionKind) schema.GroupVersionKind {
	template.Kind = strings.TrimSuffix(template.Kind, clusterv1.TemplateSuffix)
	return template
}
