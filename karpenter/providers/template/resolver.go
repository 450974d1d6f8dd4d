// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

// ErrNoBootstrap means that the node class sets no bootstrap, and a template has none of its own.
var ErrNoBootstrap = errors.New("spec.bootstrap isn't set, and infrastructure templates have no bootstrap of their own")

// ErrNotProvisioned means that the Cluster's infrastructure isn't provisioned, so its failure domains are unknown: it
// is new, or was moved to another management cluster.
var ErrNotProvisioned = errors.New("the Cluster's infrastructure isn't provisioned yet")

// ErrNotOurs means that an object in a shared namespace doesn't belong to the Cluster.
var ErrNotOurs = errors.New("it doesn't belong to this Cluster, and other Clusters share the namespace: label it " +
	clusterv1.ClusterNameLabel + "=<cluster>")

// Kinds of Cluster API that this package reads.
var (
	ClusterKind           = schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"}
	MachineDeploymentKind = schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "MachineDeployment"}
)

// Config of a Resolver.
type Config struct {
	// Objects reads the control-plane namespace of the management cluster, and cluster.x-k8s.io in this package's
	// version: see Versions.
	Objects Objects
	// ClusterName is the Cluster that machines are made for. Objects of another one are never selected.
	ClusterName string
	// Shared: the namespace has objects of other Clusters. Then only those that belong to this one are selected, and not those of none.
	Shared bool
	// Secrets reads the metadata of the node class's bootstrap Secret without a cache. A node class may only use a
	// Secret that Karpenter may read, because a machine passes its content on to the node class's author.
	Secrets client.Reader
	// Namespace is the control-plane namespace.
	Namespace string
	// SharedCatalogs reads the namespace of the catalogs that the platform shares with all clusters; nil if it shares none.
	SharedCatalogs Objects
	// ControlPlanes reads the infrastructure machines of the Cluster's control plane, whose templates aren't for nodes; nil for not knowing
	// them.
	ControlPlanes Objects
	// Profiles of infrastructure kinds.
	Profiles *profile.Profiles
}

// Objects reads one namespace. *informer.Set does, and Found.Unreadable takes its errors.
type Objects interface {
	List(ctx context.Context, kind schema.GroupKind, selector labels.Selector) ([]*unstructured.Unstructured, error)
	Get(ctx context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error)
}

var _ Objects = (*informer.Set)(nil)

// Versions of API groups that are read as Go types.
var Versions = map[string]string{"cluster.x-k8s.io": "v1beta2"}

// Resolver finds the templates that a node class selects.
type Resolver struct {
	Config
	finders []finder
}

// finder is one kind of template source.
type finder interface {
	// find adds the selected sources to found, without bootstrap if the source has none of its own. The only error is
	// that of ctx.
	find(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, found *Found) error
}

// NewResolver returns a resolver of every kind of template source.
func NewResolver(config Config) *Resolver {
	return &Resolver{Config: config, finders: []finder{
		templates{config},
		machineDeployments{config},
		newCatalogs(config),
	}}
}

// Resolve finds the templates that a node class selects. Found reports malformed sources and kinds that can't be read.
// The only error is that of ctx.
func (r *Resolver) Resolve(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) (*Found, error) {
	found := &Found{Existing: map[schema.GroupKind]int{}, Others: map[schema.GroupKind]int{}, ProfileSequence: r.Profiles.Sequence()}
	for _, f := range r.finders {
		if err := f.find(ctx, nodeClass, found); err != nil {
			return nil, err
		}
	}
	if err := r.bootstrap(ctx, nodeClass, found); err != nil {
		return nil, err
	}
	slices.SortFunc(found.Matching, Source.compare)
	found.Matching = slices.CompactFunc(found.Matching, func(a, b Source) bool { return a.compare(b) == 0 })
	slices.SortFunc(found.Templates, func(a, b Template) int { return a.Source.compare(b.Source) })
	// Two selectors may choose one source.
	found.Templates = slices.CompactFunc(found.Templates, func(a, b Template) bool { return a.Source.compare(b.Source) == 0 })
	slices.SortFunc(found.Invalid, func(a, b *InvalidError) int { return a.Source.compare(b.Source) })
	found.Invalid = slices.CompactFunc(found.Invalid, func(a, b *InvalidError) bool { return a.Source.compare(b.Source) == 0 })
	return found, nil
}

// Cluster reads the fields of the Cluster that templates need. The error is a NotFound, an *informer.UnreadableError,
// ErrNotProvisioned, or that of ctx.
func (r *Resolver) Cluster(ctx context.Context) (Cluster, error) {
	u, err := r.Objects.Get(ctx, ClusterKind, r.ClusterName)
	if err != nil {
		return Cluster{}, err
	}
	cluster := &clusterv1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, cluster); err != nil {
		return Cluster{}, fmt.Errorf("decoding Cluster %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	notReady := clusterstatus.NotReady(cluster)
	if !clusterstatus.Provisioned(cluster) {
		return Cluster{NotReady: notReady}, ErrNotProvisioned
	}
	c := Cluster{
		NotReady: notReady,
		Region:   cluster.Labels[corev1.LabelTopologyRegion], Paused: annotations.IsPaused(cluster, cluster),
		Deleting: !cluster.DeletionTimestamp.IsZero(),
	}
	for _, domain := range cluster.Status.FailureDomains {
		c.FailureDomains = append(c.FailureDomains, domain.Name)
	}
	slices.Sort(c.FailureDomains)
	c.FailureDomains = slices.Compact(c.FailureDomains)
	return c, nil
}

// bootstrap gives the node class's bootstrap to the templates without one.
func (r *Resolver) bootstrap(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, found *Found) error {
	lacking := func(s Template) bool { return !s.Bootstrap.IsDefined() }
	if !slices.ContainsFunc(found.Templates, lacking) {
		return nil
	}
	bootstrap, err := r.nodeClassBootstrap(ctx, nodeClass)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	found.BootstrapErr = err
	for i := range found.Templates {
		tmpl := &found.Templates[i]
		if lacking(*tmpl) {
			tmpl.Bootstrap = bootstrap
		}
		if tmpl.Overhead != nil {
			tmpl.Bootstrap.Kubelet = bootstrap.Kubelet.Over(tmpl.Overhead)
		}
	}
	return nil
}

func (r *Resolver) nodeClassBootstrap(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) (Bootstrap, error) {
	spec := nodeClass.Spec.Bootstrap
	switch {
	case spec == nil || (spec.ConfigTemplateRef == nil && spec.DataSecretName == ""):
		return Bootstrap{}, ErrNoBootstrap
	case spec.ConfigTemplateRef != nil:
		gk := schema.GroupKind{Group: spec.ConfigTemplateRef.APIGroup, Kind: spec.ConfigTemplateRef.Kind}
		if r.Shared {
			// The guest's admin names it, and may read a machine's bootstrap data.
			if config, err := r.Objects.Get(ctx, gk, spec.ConfigTemplateRef.Name); err == nil && !r.belongs(config) {
				return Bootstrap{}, ErrNotOurs
			}
		}
		return templateBootstrap(ctx, r.Objects, gk, spec.ConfigTemplateRef.Name)
	default:
		secret := &metav1.PartialObjectMetadata{}
		secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		if err := r.Secrets.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: spec.DataSecretName}, secret); err != nil {
			return Bootstrap{}, err
		}
		return secretBootstrap(spec.DataSecretName), nil
	}
}

func templateBootstrap(ctx context.Context, objects Objects, gk schema.GroupKind, name string) (Bootstrap, error) {
	template, err := objects.Get(ctx, gk, name)
	if err != nil {
		return Bootstrap{}, err
	}
	hash, err := contentHash(template)
	if err != nil {
		return Bootstrap{}, err
	}
	return Bootstrap{ConfigTemplate: template, Hash: hash, OwnedHash: ownedHash(template), Kubelet: kubelet.Read(template)}, nil
}

func secretBootstrap(name string) Bootstrap {
	return Bootstrap{
		DataSecretName: name, Hash: hashOf([]byte("secret/" + name)), Kubelet: kubelet.Unknown("Secret "+name, "its bootstrap data isn't read"),
	}
}

// contentHash hashes spec.template, as JSON with ordered keys. Status, labels and annotations of the template itself
// don't count.
func contentHash(template *unstructured.Unstructured) (string, error) {
	content, found, err := unstructured.NestedFieldNoCopy(template.Object, "spec", "template")
	if err != nil || !found {
		return "", fmt.Errorf("%s %s/%s has no spec.template", template.GetKind(), template.GetNamespace(), template.GetName())
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return "", fmt.Errorf("hashing spec.template of %s %s/%s: %w", template.GetKind(), template.GetNamespace(), template.GetName(), err)
	}
	return hashOf(raw), nil
}

// hashRule begins every hash. Hashes of different rules aren't compared, so an upgrade of the provider drifts no fleet.
// Raise it, to "v2:", whenever contentHash or secretBootstrap returns another result for the same content. The first
// rule's is empty, because existing machines have hashes without one.
const hashRule = ""

// hashOf returns the first half of a SHA-256 in hexadecimal: 32 characters, which fit a label.
func hashOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hashRule + hex.EncodeToString(sum[:16])
}
