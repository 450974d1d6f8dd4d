// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/annotations"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
)

// CatalogKind is the kind of catalogs.
var CatalogKind = schema.GroupKind{Group: v1alpha1.Group, Kind: "InstanceTypeCatalog"}

// ErrNothingShared means that a node class selects shared catalogs, and the platform shares none.
var ErrNothingShared = errors.New("scope Shared: the platform shares no catalogs; it names their namespace in its settings as " +
	"sharedCatalogNamespace")

// catalogs finds the instance types of catalogs. Each is a template of its own, so that a change of one concerns no other.
type catalogs struct {
	Config
	*catalogCache
}

// catalogCache keeps the templates of each catalog until it, its infrastructure template or the profiles change.
type catalogCache struct {
	mu    sync.Mutex
	known map[catalogKey]*expanded
}

// catalogKey identifies one expanded catalog.
type catalogKey struct {
	catalog    types.UID
	generation int64
	template   types.UID
	version    string // of the infrastructure template
	arch       string
	profiles   uint64
}

// expanded are the templates of one catalog. They are shared: don't modify them.
type expanded struct {
	templates []Template
	invalid   []*InvalidError
	// closed declares which offerings can't be launched.
	closed []Note
	// spec that they were read from. It is the cache's: don't modify it.
	spec map[string]any
}

func newCatalogs(config Config) catalogs {
	return catalogs{Config: config, catalogCache: &catalogCache{known: map[catalogKey]*expanded{}}}
}

func (c catalogs) find(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, found *Found) error {
	for i, selector := range nodeClass.Spec.CatalogSelectors {
		matches, err := metav1.LabelSelectorAsSelector(&selector.Selector)
		if err != nil {
			found.SelectorErrs = append(found.SelectorErrs, fmt.Errorf("spec.catalogSelectors[%d].selector: %w", i, err))
			continue
		}
		from, shared := c.Config, selector.Scope == v1alpha1.CatalogScopeShared
		from.Shared = from.Shared && !shared // the platform team's catalogs are for every Cluster
		if shared {
			if c.SharedCatalogs == nil {
				found.SelectorErrs = append(found.SelectorErrs, fmt.Errorf("spec.catalogSelectors[%d]: %w", i, ErrNothingShared))
				continue
			}
			from.Objects = c.SharedCatalogs
		}
		existing := found.Existing[CatalogKind]
		objects, err := from.list(ctx, CatalogKind, found)
		if err != nil {
			return err
		}
		found.Existing[CatalogKind] = max(existing, len(objects))
		for _, object := range objects {
			if !matches.Matches(labelsOf(object)) {
				continue
			}
			source := sourceOf(object)
			source.Shared, source.ResourceVersions = shared, ""
			found.Matching = append(found.Matching, source)
			if err := c.add(ctx, object, source, nodeClass.Spec.DefaultArchitecture, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// add adds the instance types of one catalog. The only error is that of ctx.
func (c catalogs) add(ctx context.Context, object *unstructured.Unstructured, source Source, arch string, found *Found) error {
	ref := v1alpha1.InfrastructureTemplateReference{}
	for field, into := range map[string]*string{"apiGroup": &ref.APIGroup, "kind": &ref.Kind, "name": &ref.Name} {
		*into, _, _ = unstructured.NestedString(object.Object, "spec", "templateRef", field)
	}
	if ref.APIGroup == "" || ref.Kind == "" || ref.Name == "" {
		found.add(Template{}, &InvalidError{Source: source, Problem: "spec.templateRef is incomplete; set apiGroup, kind and name"})
		return nil
	}
	// In the control-plane namespace, also for a shared catalog: properties of one cluster stay there, such as its subnets.
	template, err := c.Objects.Get(ctx, schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind}, ref.Name)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsNotFound(err):
		found.add(Template{}, &InvalidError{Source: source, Unresolved: true,
			Problem: fmt.Sprintf("%s %s, which it refers to, doesn't exist in namespace %s", ref.Kind, ref.Name, c.Namespace)})
		return nil
	case err != nil:
		found.unreadable(err, source)
		return nil
	}
	if !c.belongs(template) {
		found.add(Template{}, &InvalidError{Source: source, Unresolved: true,
			Problem: fmt.Sprintf("%s %s, which it refers to, belongs to another Cluster", ref.Kind, ref.Name)})
		return nil
	}
	all := c.expand(object, source, template, arch)
	found.Invalid = append(found.Invalid, all.invalid...)
	for _, note := range all.closed {
		found.Closed = append(found.Closed, note)
	}
	paused := annotations.HasPaused(object) || annotations.HasPaused(template)
	first := len(found.Templates)
	found.Templates = append(found.Templates, all.templates...)
	for i := range found.Templates[first:] {
		found.Templates[first+i].Paused = paused
	}
	return nil
}

// expand returns the templates of a catalog.
func (c catalogs) expand(object *unstructured.Unstructured, source Source, template *unstructured.Unstructured, arch string) *expanded {
	key := catalogKey{
		catalog: object.GetUID(), generation: object.GetGeneration(), template: template.GetUID(), version: template.GetResourceVersion(),
		arch: arch, profiles: c.Profiles.Sequence(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cacheable := key.catalog != "" && key.generation != 0 && key.template != "" && key.version != ""
	if known, ok := c.known[key]; ok && cacheable {
		return known
	}
	var before *expanded
	if cacheable {
		for other, known := range c.known {
			if other.generation = key.generation; other == key {
				before = known
			}
		}
	}
	all := c.rereadCatalog(before, object, source, template, arch)
	if all == nil {
		all = c.readCatalog(object, source, template, arch)
	}
	if !cacheable {
		return all
	}
	// A node class that uses another architecture reads the catalog again; of earlier generations nothing is kept.
	maps.DeleteFunc(c.known, func(other catalogKey, _ *expanded) bool {
		return other.catalog == key.catalog &&
			(other.generation != key.generation || other.profiles != key.profiles || other.template == key.template && other.version != key.version)
	})
	if len(c.known) >= maxKnown {
		maps.DeleteFunc(c.known, func(catalogKey, *expanded) bool { return true })
	}
	c.known[key] = all
	return all
}

// maxKnown bounds the catalogs that are kept.
const maxKnown = 64

// rereadCatalog reads the changed entries of a catalog since an earlier generation, such as a price: entries depend on the catalog's common
// fields, and not on each other unless something is wrong. It returns nil if the whole catalog has to be read.
func (c catalogs) rereadCatalog(before *expanded, object *unstructured.Unstructured, source Source, template *unstructured.Unstructured,
	arch string,
) *expanded {
	if before == nil || len(before.invalid)+len(before.closed) > 0 {
		return nil
	}
	spec, _ := object.Object["spec"].(map[string]any)
	was, _ := before.spec["instanceTypes"].([]any)
	is, _ := spec["instanceTypes"].([]any)
	const few = 10
	if len(is) != len(before.templates) || len(was) != len(is) || len(is) < few || len(spec) != len(before.spec) {
		return nil
	}
	for key, value := range spec {
		if key != "instanceTypes" && !sameJSON(before.spec[key], value) {
			return nil
		}
	}
	var changed []int
	for i := range is {
		if sameJSON(was[i], is[i]) {
			continue
		}
		if changed = append(changed, i); len(changed) > len(is)/few {
			return nil
		}
	}
	// An unchanged entry declares that there are several.
	entries := make([]any, 0, len(changed)+1)
	for _, i := range changed {
		entries = append(entries, is[i])
	}
	for i := range is {
		if !slices.Contains(changed, i) {
			entries = append(entries, is[i])
			break
		}
	}
	part := maps.Clone(spec)
	part["instanceTypes"] = entries
	read := c.readCatalog(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(), "spec": part,
	}}, source, template, arch)
	if len(read.templates) != len(entries) || len(read.invalid)+len(read.closed) > 0 {
		return nil
	}
	all := &expanded{templates: slices.Clone(before.templates), spec: spec}
	for n, i := range changed {
		if read.templates[n].InstanceType != before.templates[i].InstanceType {
			return nil // a name may be there twice now
		}
		all.templates[i] = read.templates[n]
	}
	return all
}

// sameJSON reports whether two decoded values are the same.
func sameJSON(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for key, value := range x {
			other, exists := y[key]
			if !exists || !sameJSON(value, other) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, sameJSON)
	}
	return a == b
}

// readCatalog reads a catalog. One that can't be used has no templates, and reports why.
func (c catalogs) readCatalog(object *unstructured.Unstructured, source Source, template *unstructured.Unstructured, arch string,
) *expanded {
	unusable := func(problem string) *expanded {
		return &expanded{invalid: []*InvalidError{{Source: source, Problem: problem}}}
	}
	spec, malformed, err := decodeCatalog(object)
	if err != nil {
		return unusable(err.Error())
	}
	read := catalog.Read(spec)
	if read.Err != nil {
		return unusable(read.Err.Error())
	}
	base := Template{Source: source}
	if invalid := base.setTemplate(template); invalid != nil {
		return unusable(invalid.Problem)
	}
	if version, stated := template.GetAnnotations()[v1alpha1.KubernetesVersionAnnotation]; stated {
		if problem := base.setImageVersion(strings.TrimSpace(version)); problem != "" {
			invalid := base.invalid(layer{object: template}, "annotation "+v1alpha1.KubernetesVersionAnnotation, version, problem)
			return &expanded{invalid: []*InvalidError{invalid}}
		}
	}
	base.Source.ResourceVersions = string(template.GetUID()) + "@" + template.GetResourceVersion()
	kind := c.Profiles.For(template.GroupVersionKind().GroupKind())
	if !kind.Known() {
		base.Notes = []Note{unknownKind(template)}
	}
	all, closed := &expanded{}, closedOfferings{}
	all.spec, _ = object.Object["spec"].(map[string]any)
	for _, p := range read.Problems {
		if p.OfferingsOnly {
			closed.add(p.Message, p.Name)
			continue
		}
		entry := source
		// A second entry of a name isn't the first one.
		entry.Entry = message.Cut(p.Name, maxShown)
		if p.Name == "" || slices.ContainsFunc(read.Types, func(t catalog.Type) bool { return t.Name == p.Name }) {
			entry.Entry = fmt.Sprintf("%s[%d]", entry.Entry, p.Index)
		}
		problem := p.Message
		if reason, ok := malformed[p.Index]; ok {
			problem = reason
		}
		all.invalid = append(all.invalid, &InvalidError{Source: entry, Problem: problem})
	}
	for i := range read.Types {
		tmpl := base
		tmpl.offer(&read.Types[i], kind, arch, closed)
		all.templates = append(all.templates, tmpl)
	}
	all.closed = closed.notes(source)
	return all
}

// decodeCatalog decodes each entry separately, and reports which it can't.
func decodeCatalog(object *unstructured.Unstructured) (spec *v1alpha1.InstanceTypeCatalogSpec, malformed map[int]string, err error) {
	content, _, err := unstructured.NestedMap(map[string]any{"spec": withoutEntries(object)}, "spec")
	if err != nil {
		return nil, nil, err
	}
	spec, malformed = &v1alpha1.InstanceTypeCatalogSpec{}, map[int]string{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, spec); err != nil {
		return nil, nil, fmt.Errorf("spec can't be read: %w", err)
	}
	field, _, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "instanceTypes")
	entries, ok := field.([]any)
	if err != nil || field != nil && !ok {
		return nil, nil, errors.New("spec.instanceTypes is not a list")
	}
	spec.InstanceTypes = make([]v1alpha1.CatalogInstanceType, len(entries))
	for i := range entries {
		entry, ok := entries[i].(map[string]any)
		if !ok {
			malformed[i] = "is not an object"
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(entry, &spec.InstanceTypes[i]); err != nil {
			name, _, _ := unstructured.NestedString(entry, "name")
			spec.InstanceTypes[i] = v1alpha1.CatalogInstanceType{Name: name}
			malformed[i] = "can't be read: " + message.Cut(err.Error(), 2*maxShown)
		}
	}
	return spec, malformed, nil
}

func withoutEntries(object *unstructured.Unstructured) map[string]any {
	spec, _ := object.Object["spec"].(map[string]any)
	spec = maps.Clone(spec)
	delete(spec, "instanceTypes")
	return spec
}

// closedOfferings are the instance types with offerings that can't be launched, by reason.
type closedOfferings map[string][]string

func (c closedOfferings) add(reason, instanceType string) {
	if names := c[reason]; len(names) == 0 || names[len(names)-1] != instanceType {
		c[reason] = append(names, instanceType)
	}
}

// notes are one for each reason, in order.
func (c closedOfferings) notes(source Source) (notes []Note) {
	for _, reason := range slices.Sorted(maps.Keys(c)) {
		shown := message.List(c[reason], 3, ", ")
		notes = append(notes, Note{On: source.String(), Text: message.Cut(shown, 4*maxShown) + ": " + reason})
	}
	return notes
}

// offer makes the template an instance type of a catalog. Offerings that its machines wouldn't be are left out, and added to closed.
func (s *Template) offer(t *catalog.Type, kind infrastructure.Kind, arch string, closed closedOfferings) {
	s.Source.Entry = t.Name
	s.Source.ResourceVersions = t.Hash + "," + s.Source.ResourceVersions
	s.InstanceType = t.Name
	s.Arch, s.OS = cmp.Or(t.Arch, arch, DefaultArch), cmp.Or(t.OS, DefaultOS)
	s.Capacity, s.NominalMemory = maps.Clone(t.Capacity), true
	if _, ok := s.Capacity[corev1.ResourcePods]; !ok {
		s.Capacity[corev1.ResourcePods] = *resource.NewQuantity(kubelet.DefaultMaxPods, resource.DecimalSI)
		s.DefaultPods = true
	}
	s.MemoryOverhead, s.Devices, s.Labels, s.Patches = t.MemoryOverhead, t.Devices, t.Labels, t.Patches
	s.VolumeLimits = t.VolumeLimits
	s.Overhead, s.OverheadHash = t.Overhead, t.OverheadHash
	s.readDisk(kind)
	s.addHash()
	s.Offerings = make([]catalog.Offering, 0, len(t.Offerings))
	reasons := map[string]string{}
	for _, o := range t.Offerings {
		reason, known := reasons[o.CapacityType]
		if !known {
			reason = s.misbilled(kind, o)
			reasons[o.CapacityType] = reason
		}
		if reason != "" {
			closed.add(reason, t.Name)
			continue
		}
		s.Offerings = append(s.Offerings, o)
	}
}

// misbilled returns why the machine of an offering wouldn't be paid for as the offering declares, or "".
func (s *Template) misbilled(kind infrastructure.Kind, o catalog.Offering) string {
	if o.CapacityType == karpv1.CapacityTypeReserved {
		return "" // the catalog was only read with a patch that writes the reservation
	}
	patched := s.Patches.Refers(patch.CapacityType)
	made, field := s.made(kind, o)
	if made == "" && !patched {
		made = karpv1.CapacityTypeOnDemand // the contract has no other
	}
	by := ""
	if field != "" {
		by = " by " + field
	}
	switch {
	case made == "" || made == o.CapacityType:
		return ""
	case patched:
		return fmt.Sprintf("its %s offerings are closed: a patch refers to the variable capacityType, and the machine is nevertheless %s%s",
			o.CapacityType, made, by)
	}
	return fmt.Sprintf("its %s offerings are closed: no patch writes the capacity type into the machine, which is %s%s; write the variable "+
		"capacityType into it by spec.patches", o.CapacityType, made, by)
}

// made returns the capacity type of the patched machine of an offering by the kind's own fields; empty where the kind has none or a patch
// doesn't apply, which is reported elsewhere.
func (s *Template) made(kind infrastructure.Kind, o catalog.Offering) (capacityType, field string) {
	facts := s.patched(kind, o)
	return facts.CapacityType, facts.CapacityTypeField
}

// readDisk sets the ephemeral storage of an instance type whose catalog declares none, as for a template: to the one of the annotation,
// otherwise to that of the patched machine's own fields. A quantity that can't be read stays unknown, which the node class reports.
func (s *Template) readDisk(kind infrastructure.Kind) {
	if _, declared := s.Capacity[corev1.ResourceEphemeralStorage]; declared {
		return
	}
	disk, annotated := s.Infrastructure.GetAnnotations()[diskAnnotation]
	if !annotated {
		disk = s.patched(kind, catalog.Offering{CapacityType: catalog.OnDemand}).Capacity[corev1.ResourceEphemeralStorage]
	}
	if quantity, problem := ParseQuantity(strings.TrimSpace(disk)); problem == "" {
		s.Capacity[corev1.ResourceEphemeralStorage] = quantity
	}
}

// patched returns what the kind's profile reads in the patched machine of an offering; nothing where a patch doesn't apply.
func (s *Template) patched(kind infrastructure.Kind, o catalog.Offering) infrastructure.Facts {
	if !kind.Known() {
		return infrastructure.Facts{}
	}
	spec, _, err := unstructured.NestedFieldCopy(s.Infrastructure.Object, "spec", "template", "spec")
	if err != nil {
		return infrastructure.Facts{}
	}
	zone := cmp.Or(o.Zone, "example")
	patched := map[string]any{"spec": spec}
	if s.Patches.Apply(patched, patch.Values{
		Variables: map[string]any{
			patch.InstanceType: s.InstanceType, patch.CapacityType: o.CapacityType, patch.Zone: zone, patch.FailureDomain: zone,
			patch.Version: "1.36.3", patch.NodeClaim: "example", patch.MaxPods: s.Capacity.Pods().Value(),
		},
		Image: func(image patch.Image) (string, bool) { return image.String(), true },
	}) != nil {
		return infrastructure.Facts{}
	}
	return kind.Read(&unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": patched}}})
}
