// SPDX-License-Identifier: Apache-2.0

// Package provider is the seam between the operator's steps and the differences of Karpenter's cloud providers. A
// provider is a folder below this one that holds its Profile; operator/run.go lists them. The steps know no provider by name.
package provider

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// Profile has the differences of one of Karpenter's cloud providers for the operator. Its functions read, and never write. Those that may
// be nil say so.
type Profile struct {
	// Platform is the provider's name in spec.autoNode.
	Platform v1beta1.Platform
	// Component is the name of this Karpenter in the payload.
	Component string

	// CheckSpec returns the problem of the provider's member of the union, beginning with the field's path below
	// spec.autoNode.provisionerConfig.karpenter, and its remedy. It reads nothing else.
	CheckSpec func(config *v1beta1.Karpenter) error
	// CheckCluster returns why the provider can't work with the Cluster or with the management cluster's APIs.
	CheckCluster func(ctx context.Context, in Input) (Finding, error)

	// Deployment returns Karpenter's Deployment, as an asset of one container without an image. The operator sets the image, pull secrets
	// and labels; AdaptDeployment sets the rest that varies.
	Deployment      func() (*appsv1.Deployment, error)
	AdaptDeployment func(ctx context.Context, in Input, deployment *appsv1.Deployment) error
	// ReadsNodeImages: Karpenter gets the node images that the payload names.
	ReadsNodeImages bool
	// Role returns Karpenter's permissions in its control-plane namespace; nil where it has no business there.
	Role func(ctx context.Context, in Input) (*rbacv1.Role, error)

	// NodeClass is the kind of the provider's node classes.
	NodeClass NodeClass
	// Definitions returns the CustomResourceDefinitions to use where the payload ships none of that name, for the caller to change.
	Definitions func() ([]*apiextensionsv1.CustomResourceDefinition, error)
	// DefaultNodeClass returns the node class that the operator keeps in the guest; nil where a HostedCluster doesn't say enough
	// for one, and its admin writes them all.
	DefaultNodeClass func(config *v1beta1.Karpenter) client.Object
	// NodeClasses returns the reports of a guest's node classes; nil if they report nothing that the operator reads.
	NodeClasses func(ctx context.Context, guest client.Reader) ([]NodeClassReport, error)

	// HoldsUpgrades: the provider follows Input.Upgrades.
	HoldsUpgrades bool

	// ClusterRole returns Karpenter's permissions in the guest, under the name that assets/guest binds.
	ClusterRole func() (*rbacv1.ClusterRole, error)
	// Roles returns the other bindings in the guest: Roles and RoleBindings of Karpenter's, ClusterRoleBindings of nodes'.
	// Nil for none.
	Roles func() ([]client.Object, error)
	// Tokens are those of Karpenter's ServiceAccount in the guest that it is given, the one for the guest's own API server first.
	Tokens []Token
	// LeaseInGuest: Karpenter's Lease is in namespace kube-system of the guest, and not in the control-plane
	// namespace.
	LeaseInGuest bool

	// ApprovesCertificates: the operator decides on the certificate requests of the provider's nodes. Each has to be a Machine
	// that carries the labels of its NodeClaim.
	ApprovesCertificates bool

	// Unattended describes the machines that a Cluster may leave behind when its guest is unreachable or Karpenter
	// doesn't finish, and how to find them: only Karpenter has the provider's machines. It is nil if each machine
	// is a Machine, which the operator deletes.
	Unattended func(clusterName string) string
}

// NodeClass is a cluster-scoped kind in the guest.
type NodeClass struct {
	schema.GroupVersionKind
	// Plural is the kind's name in URLs.
	Plural string
	// New and NewList return empty objects to read node classes into: metadata is enough.
	New     func() client.Object
	NewList func() client.ObjectList
	// DrainingAnnotation makes a node class launch nothing while it is "true". Where the provider has no such thing, Karpenter loses
	// the right to create NodeClaims while it drains.
	DrainingAnnotation string
	// Guarded: the guest's admission policy about node classes is for this kind, whose fields it names.
	Guarded bool
	// RolloutAnnotation is on each node class: Karpenter's last complete rollout, as in the variable RolloutVariable
	// of its Deployment. Empty if the provider doesn't read it.
	RolloutAnnotation string
	// StopLaunches makes a node class report, with a reason and a message, that Karpenter launches nothing because it doesn't run. It reports
	// whether that changes the node class, and changes none that Karpenter has reported on after since. Nil if the provider has no such
	// report.
	StopLaunches func(class client.Object, since time.Time, reason, message string) bool
	// FromPayload: the payload has the kind's CRD, and Definitions hasn't.
	FromPayload bool
	// Finalizer is Karpenter's. Once there is no NodeClaim it protects nothing, unless CleansUp reports that Karpenter has more to
	// clean up after a node class, and is to be waited for.
	Finalizer string
	CleansUp  bool
}

// Definition is the name of the kind's CustomResourceDefinition.
func (n NodeClass) Definition() string { return n.Plural + "." + n.Group }

// RolloutVariable is the environment variable that names to Karpenter the rollout that it is of.
const RolloutVariable = "ROLLOUT_ID"

// Token is a token of Karpenter's ServiceAccount in the guest, in the Secret that is mounted into its pods.
type Token struct {
	// Key of the Secret, and so the file's name.
	Key string
	// Audience that the token is for; empty is the guest's API server.
	Audience string
}

// Audiences are the API's way to say the same.
func (t Token) Audiences() []string {
	if t.Audience == "" {
		return nil
	}
	return []string{t.Audience}
}

// NodeClassReport is the report of a node class, as Karpenter, or whoever may write to it in the guest, wrote it.
type NodeClassReport struct {
	Name       string
	Generation int64
	// Default: it is the one that DefaultNodeClass returns.
	Default bool
	// Ready is its condition Ready; nil while Karpenter has reported none. Its reason, and that of Offerings, is one of a fixed set, or empty.
	Ready *metav1.Condition
	// Offerings is its condition that reports whether launches succeed: False if none of its offerings can be launched, or every launch fails;
	// nil if it has none.
	Offerings *metav1.Condition
	// Pinned is the version that its admin sets, independent of the payload; empty for none.
	Pinned string
	// Given is the version that its nodes get now; empty while it isn't known.
	Given string
	// Images are those that hold their nodes at an older version.
	Images []OlderImage
	// Upgrade is the progress of an upgrade that proves itself; nil for none.
	Upgrade *v1alpha1.NodeUpgradeStatus
}

// OlderImage is the image of a machine template: its nodes get its version, independent of the payload.
type OlderImage struct {
	// Template names it, as <kind>/<name>.
	Template string
	// InstanceType of its nodes.
	InstanceType string
	// Version of its kubelet.
	Version string
}

// Finding is a reason of ValidConfiguration, and its message. The zero value finds nothing wrong.
type Finding struct {
	Reason, Message string
	// Recheck is the requeue interval if no watch shows the correction; zero for none.
	Recheck time.Duration
}

// Input has the facts of one hosted cluster for a Profile's functions. They can read, and never write.
type Input struct {
	// Namespace is the control-plane namespace.
	Namespace string
	// ClusterName is the name of the Cluster API Cluster.
	ClusterName string
	// Names are the names of the cluster's objects in the control-plane namespace.
	Names v1beta1.Names
	// Cluster is that Cluster; nil while there is none.
	Cluster *clusterv1.Cluster
	// Config is the HostedCluster's.
	Config *v1beta1.Karpenter
	// NodeVersion is the Kubernetes version that nodes get now: the payload's, or a former one's.
	NodeVersion string
	// Upgrades is when outdated nodes may be replaced.
	Upgrades Upgrades
	// Endpoint is the URL by which the operator reaches the guest's API server, and CA what it trusts there. Both are empty where
	// configuration is checked.
	Endpoint string
	CA       []byte
	// Reader reads the management cluster: from caches, but for unstructured objects.
	Reader client.Reader
	// Mapper has the management cluster's kinds.
	Mapper meta.RESTMapper
	// Templates has the texts of templates; nil where no Role is rendered.
	Templates Templates
	// SharedCatalogNamespace is the namespace of the InstanceTypeCatalogs that every hosted cluster may use; empty for none.
	SharedCatalogNamespace string
}

// Templates has the texts of the templates of machines and of their bootstrap. *references.Templates does.
type Templates interface {
	// Texts returns those of the templates of a kind in a namespace that belong, with MachineDeployments' annotations, as a Role names them.
	Texts(ctx context.Context, namespace string, kind schema.GroupKind, belongs func(metav1.Object) bool,
		annotations []map[string]string) ([]string, error)
}

// Upgrades is when nodes may be replaced for their version. The zero value is at any time.
type Upgrades struct {
	// Hold: at no time.
	Hold bool
	// Window: only while it is open; nil for no such bound.
	Window *v1beta1.MaintenanceWindow
}

// Profiles holds one Profile for each platform.
type Profiles map[v1beta1.Platform]*Profile

// NewProfiles returns the profiles by their platform.
func NewProfiles(profiles ...*Profile) Profiles {
	byPlatform := Profiles{}
	for _, profile := range profiles {
		byPlatform[profile.Platform] = profile
	}
	return byPlatform
}

// String lists the platforms.
func (p Profiles) String() string {
	platforms := make([]string, 0, len(p))
	for platform := range p {
		platforms = append(platforms, string(platform))
	}
	slices.Sort(platforms)
	return strings.Join(platforms, ", ")
}

// PlatformOf returns the platform of a HostedCluster's component, else the one that its spec declares. Component is nil where nothing
// runs. A component that has lost its label is Cluster API's.
func PlatformOf(hostedCluster *v1beta1.HostedCluster, component *v1beta1.ControlPlaneComponent) v1beta1.Platform {
	if component != nil {
		return cmp.Or(v1beta1.Platform(component.Labels[v1beta1.PlatformLabel]), v1beta1.PlatformClusterAPI)
	}
	if autoNode := hostedCluster.Spec.AutoNode; autoNode != nil && autoNode.ProvisionerConfig.Karpenter != nil {
		return autoNode.ProvisionerConfig.Karpenter.Platform
	}
	return v1beta1.PlatformClusterAPI
}
