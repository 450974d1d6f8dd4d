// SPDX-License-Identifier: Apache-2.0

package drift_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/blang/semver/v4"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// world is a node class with its current templates, and a node that was made from them.
type world struct {
	nodeClass *v1alpha1.ClusterAPINodeClass
	templates []template.Template
	gaps      template.Gaps
	cluster   template.Cluster
	nodeClaim *karpv1.NodeClaim
	machine   *clusterv1.Machine
	server    string
	payload   string
	reachable bool
	// upgrades may be nil.
	upgrades version.Upgrades
	// rollout that Karpenter is of; empty for none.
	rollout string
	// images are those of the payload.
	images *nodeimage.File
	// unavailable may be nil.
	unavailable *offering.Unavailable
}

func settled() *world {
	nodeClass := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	tmpl := template.Template{
		Source:         template.Source{GroupKind: schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "TestMachineTemplate"}, Name: "c4"},
		Infrastructure: &unstructured.Unstructured{},
		ContentHash:    "content",
		Bootstrap:      template.Bootstrap{DataSecretName: "data", Hash: "bootstrap"},
		InstanceType:   "c4",
		Arch:           "amd64",
		OS:             "linux",
		Capacity:       corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		Price:          ptr.To(0.1),
		SpotPrice:      ptr.To(0.03),
	}
	return &world{
		nodeClass: nodeClass,
		templates: []template.Template{tmpl},
		cluster:   template.Cluster{FailureDomains: []string{"a", "b"}},
		nodeClaim: &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			v1alpha1.NodeClassHashAnnotation:        nodeClass.Hash(),
			v1alpha1.NodeClassHashVersionAnnotation: v1alpha1.NodeClassHashVersion,
		}}},
		machine: &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{
					corev1.LabelInstanceTypeStable: "c4", corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot,
				},
				Annotations: map[string]string{
					v1alpha1.TemplateSourceAnnotation: tmpl.Source.Annotation(),
					v1alpha1.TemplateHashAnnotation:   "content",
					v1alpha1.BootstrapHashAnnotation:  "bootstrap",
				},
			},
			Spec: clusterv1.MachineSpec{Version: "v1.36.2"},
		},
		server:    "1.36.2",
		payload:   "1.36.2",
		reachable: true,
		images:    nodeimage.NewFile(""),
	}
}

// deployed gives the node a MachineDeployment, with a version of its own.
func deployed() *world {
	w := settled()
	w.templates[0].Source = template.Source{GroupKind: template.MachineDeploymentKind, Name: "workers"}
	w.templates[0].Machine = &clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{Version: "v1.36.1"}}
	w.machine.Annotations[v1alpha1.TemplateSourceAnnotation] = w.templates[0].Source.Annotation()
	w.machine.Spec.Version = "v1.36.1"
	return w
}

func deferred() *world {
	w := deployed()
	w.nodeClass.Spec.DriftPolicy = v1alpha1.DriftPolicyDefer
	return w
}

func (w *world) reason() karpcloudprovider.DriftReason {
	return w.detector().Reason(w.nodeClass, w.nodeClaim, w.machine)
}

func (w *world) expect(t *testing.T, want karpcloudprovider.DriftReason) {
	t.Helper()
	NewWithT(t).Expect(w.reason()).To(Equal(want))
}

func (w *world) detector() *drift.Detector {
	templates := &environment.Templates{}
	store := instancetype.New(instancetype.Config{Templates: templates, Version: w.version, Pricing: pricing.New(pricing.NewFile("")), Unavailable: w.unavailable, Inventory: environment.NoMachines(), Capacity: capacityprovider.Unlimited{}})
	if w.templates != nil {
		templates.Offer(w.nodeClass.Name, w.templates, w.cluster, w.gaps)
		if _, err := store.Refresh(context.Background(), w.nodeClass); err != nil {
			panic(err) // what Offer said is never an error
		}
	}
	return drift.New(drift.Config{InstanceTypes: store, Images: w.images, Version: w.version, Upgrades: w.upgrades, Rollout: w.rollout})
}

// version resolves as version.Resolver does.
func (w *world) version(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (version.Result, bool) {
	in := version.Input{Spec: nodeClass.Spec.Version, Payload: w.payload, Current: nodeClass.Status.Version}
	if tmpl != nil {
		in.MachineDeployment, in.Image = tmpl.Version(), tmpl.ImageVersion
	}
	if w.server != "" {
		server := semver.MustParse(w.server)
		in.Server = &server
	}
	return version.Resolve(in), w.reachable
}

func held(time.Time) bool { return false }

func kubelet(w *world) {
	w.nodeClass.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20)}
}

func TestReason(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		want   karpcloudprovider.DriftReason
	}{
		"When nothing has changed, it should find no drift": {func(*world) {}, ""},

		"When the payload's version is another but upgrades are held, it should wait": {func(w *world) {
			w.payload, w.machine.Spec.Version, w.upgrades = "1.36.2", "v1.36.1", held
		}, ""},
		"When the payload's version is another and upgrades are allowed, it should find it": {func(w *world) {
			w.payload, w.machine.Spec.Version, w.upgrades = "1.36.2", "v1.36.1", func(time.Time) bool { return true }
		}, drift.VersionDrifted},
		"When upgrades are held but the node class names a version, it should follow that": {func(w *world) {
			w.nodeClass.Spec.Version, w.upgrades = "1.36.1", held
			w.nodeClaim.Annotations[v1alpha1.NodeClassHashAnnotation] = w.nodeClass.Hash()
		}, drift.VersionDrifted},
		"When upgrades are held but something else has changed, it should find that": {func(w *world) {
			w.machine.Spec.Version, w.upgrades = "v1.36.1", held
			w.templates[0].ContentHash = "other"
		}, drift.TemplateDrifted},

		"When the hash was made by another rule, it should not compare it": {func(w *world) {
			kubelet(w)
			w.nodeClaim.Annotations[v1alpha1.NodeClassHashVersionAnnotation] = "v0"
		}, ""},
		"When the template's content has changed, it should find it": {func(w *world) { w.templates[0].ContentHash = "new" }, drift.TemplateDrifted},
		"When the template was replaced by another with the same content and instance type, it should find nothing": {
			func(w *world) { w.templates[0].Source.Name = "c4-v2" }, "",
		},
		"When the templates haven't been read yet, it should wait":            {func(w *world) { w.templates = nil }, ""},
		"When a machine reports nothing about its template, it should wait":   {func(w *world) { w.machine.Annotations = nil }, ""},
		"When the machine follows its template's version, it should leave it": {func(w *world) { w.machine.Spec.Version = "" }, ""},

		"When the payload and the API server are upgraded, it should find the node's version old": {
			func(w *world) { w.payload, w.server = "1.36.3", "1.36.3" }, drift.VersionDrifted,
		},
		"When the payload is newer than the API server, it should find nothing, whatever else has changed": {func(w *world) {
			w.payload = "1.36.3"
			kubelet(w)
			w.templates[0].ContentHash = "new"
		}, ""},
		"When the API server can't be reached, it should find nothing": {func(w *world) {
			w.reachable = false
			kubelet(w)
		}, ""},
		"When AutoNode is being turned off, it should find nothing: the nodes go anyway": {func(w *world) {
			w.nodeClass.Annotations = map[string]string{v1alpha1.DrainingAnnotation: "true"}
			kubelet(w)
		}, ""},
		"When another Karpenter's rollout was the last one to be complete, it should find nothing: that Karpenter may still run": {func(w *world) {
			w.rollout, w.nodeClass.Annotations = "new", map[string]string{v1alpha1.RolloutAnnotation: "old"}
			kubelet(w)
		}, ""},
		"When its own rollout is complete, it should find drift": {func(w *world) {
			w.rollout, w.nodeClass.Annotations = "new", map[string]string{v1alpha1.RolloutAnnotation: "new"}
			kubelet(w)
		}, drift.NodeClassDrifted},
		"When no rollout is recorded as complete, it should find drift": {func(w *world) {
			w.rollout = "new"
			kubelet(w)
		}, drift.NodeClassDrifted},
		"When it is of no rollout, it should find drift": {func(w *world) {
			w.nodeClass.Annotations = map[string]string{v1alpha1.RolloutAnnotation: "old"}
			kubelet(w)
		}, drift.NodeClassDrifted},
		"When the node class is being deleted, it should find nothing": {func(w *world) {
			w.nodeClass.DeletionTimestamp = ptr.To(metav1.Now())
			kubelet(w)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := settled()
			tc.change(w)
			w.expect(t, tc.want)
		})
	}
}

func TestAdopted(t *testing.T) {
	w := settled()
	w.templates[0].ContentHash = "other"
	w.expect(t, drift.TemplateDrifted)
	w.nodeClaim.UID, w.nodeClaim.Annotations[v1alpha1.AdoptedAnnotation] = "adopted", "workers"
	t.Run("When a guest's admin writes the annotation, it should drift", func(t *testing.T) { w.expect(t, drift.TemplateDrifted) })
	t.Run("When a node was adopted, it should not drift until that annotation is removed", func(t *testing.T) {
		w.machine.Annotations[v1alpha1.AdoptedAnnotation] = "adopted"
		w.expect(t, "")
	})
}

func TestOfferingGone(t *testing.T) {
	gone := func(w *world) { w.templates = []template.Template{} }
	for name, tc := range map[string]struct {
		change func(*world)
		want   karpcloudprovider.DriftReason
	}{
		"When the source was deleted or isn't selected any more, it should find nothing": {gone, ""},
		"When the source offers another instance type now, it should find its offering gone": {
			func(w *world) { w.templates[0].InstanceType = "c4-metal" }, drift.OfferingGone,
		},
		"When another source offers the same, it should find nothing": {func(w *world) {
			other := w.templates[0]
			other.Source.Name = "other"
			w.templates[0].SpotPrice = nil
			w.templates = append(w.templates, other)
		}, ""},
		"When the source was created again with other content, it should find that": {func(w *world) {
			w.templates[0].Source.UID, w.templates[0].ContentHash = "another", "new"
		}, drift.TemplateDrifted},
		"When the source contradicts another of the same instance type, it should find nothing": {func(w *world) {
			arm := w.templates[0]
			arm.Source.Name, arm.Arch, arm.SpotPrice = "arm", "arm64", nil
			w.templates = []template.Template{arm, w.templates[0]}
		}, ""},
		"When the offering is unavailable, it should find nothing": {func(w *world) {
			w.unavailable = offering.NewUnavailable(clock.RealClock{})
			w.unavailable.Mark(offering.Key{InstanceType: "c4", Zone: "a", CapacityType: karpv1.CapacityTypeSpot}, "NoHosts")
		}, ""},
		"When there were no zones and the source is bound to one now, it should find nothing": {func(w *world) {
			w.machine.Labels[corev1.LabelTopologyZone] = instancetype.DefaultZone
			w.templates[0].FailureDomains = []string{"b"}
		}, ""},
		"When the machine reports nothing about its zone, it should find nothing": {func(w *world) {
			gone(w)
			delete(w.machine.Labels, corev1.LabelTopologyZone)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := settled()
			tc.change(w)
			w.expect(t, tc.want)
		})
	}
}

func TestMachineDeployment(t *testing.T) {
	for name, tc := range map[string]struct {
		from   func() *world
		change func(*world)
		want   karpcloudprovider.DriftReason
	}{
		"When nothing has changed, it should not take the payload's version for the MachineDeployment's": {deployed, func(*world) {}, ""},
		"When its version has changed, it should find it":                                                {deployed, func(w *world) { w.templates[0].Machine.Spec.Version = "v1.36.2" }, drift.VersionDrifted},
		"When the payload is ahead of the API server, it should look only at its own version": {deployed, func(w *world) {
			w.payload = "1.37.0"
			w.templates[0].ContentHash = "new"
		}, drift.TemplateDrifted},
		"When it can't be read, it should find nothing": {deployed, func(w *world) {
			w.templates = []template.Template{}
			w.gaps.All = true
		}, ""},

		"When drift is deferred and its template has changed, it should find nothing":  {deferred, func(w *world) { w.templates[0].ContentHash = "new" }, ""},
		"When drift is deferred and its bootstrap has changed, it should find nothing": {deferred, func(w *world) { w.templates[0].Bootstrap.Hash = "new" }, ""},
		"When drift is deferred and its version has changed, it should find nothing":   {deferred, func(w *world) { w.templates[0].Machine.Spec.Version = "v1.36.2" }, ""},
		"When drift is deferred and it has no version, it should follow the payload":   {deferred, func(w *world) { w.templates[0].Machine.Spec.Version = "" }, drift.VersionDrifted},
		"When drift is deferred and the node class requests a version, it should find that": {
			deferred, func(w *world) { w.nodeClass.Spec.Version = "1.36.2" }, drift.VersionDrifted,
		},
		"When drift is deferred and the kubelet's settings have changed, it should find that": {deferred, kubelet, drift.NodeClassDrifted},
		"When drift is deferred, it should still find that an infrastructure template has changed": {settled, func(w *world) {
			w.nodeClass.Spec.DriftPolicy = v1alpha1.DriftPolicyDefer
			w.templates[0].ContentHash = "new"
		}, drift.TemplateDrifted},
	} {
		t.Run(name, func(t *testing.T) {
			w := tc.from()
			tc.change(w)
			w.expect(t, tc.want)
		})
	}
}

func TestNodeImages(t *testing.T) {
	// booted is a node whose bootstrap had an image of the payload's.
	booted := func(t *testing.T) *world {
		w := settled()
		kind := schema.GroupVersionKind{Group: "bootstrap.cluster.x-k8s.io", Version: "v1", Kind: "AnyConfigTemplate"}
		w.nodeClass.Spec.BootstrapPatches = []v1alpha1.BootstrapPatches{{APIGroup: kind.Group, Kind: "AnyConfig", Patches: []v1alpha1.JSONPatch{{
			Op: v1alpha1.JSONPatchAdd, Path: "/spec/image", ValueFrom: &v1alpha1.JSONPatchValue{Variable: "image.aws.us-east-1"},
		}}}}
		w.nodeClaim.Annotations[v1alpha1.NodeClassHashAnnotation] = w.nodeClass.Hash()
		config := &unstructured.Unstructured{}
		config.SetGroupVersionKind(kind)
		w.templates[0].Bootstrap = template.Bootstrap{ConfigTemplate: config, Hash: "bootstrap"}
		w.names(t, "ami-1")
		if hash, _ := machine.ImagesHash(w.nodeClass.Spec.BootstrapPatches, &w.templates[0], w.images.For("1.36.2", "amd64")); hash != "" {
			w.machine.Annotations[v1alpha1.NodeImagesHashAnnotation] = hash
		}
		return w
	}
	for name, tc := range map[string]struct {
		change func(*testing.T, *world)
		want   karpcloudprovider.DriftReason
	}{
		"When the payload names the same image, it should find no drift":    {func(*testing.T, *world) {}, ""},
		"When the payload names another image, it should find it":           {func(t *testing.T, w *world) { w.names(t, "ami-2") }, drift.NodeImageDrifted},
		"When the payload names no image any more, it should find no drift": {func(_ *testing.T, w *world) { w.images = nodeimage.NewFile("") }, ""},
		"When nodes may not be upgraded now, it should find no drift": {func(t *testing.T, w *world) {
			w.names(t, "ami-2")
			w.upgrades = func(time.Time) bool { return false }
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := booted(t)
			tc.change(t, w)
			w.expect(t, tc.want)
		})
	}
}

// names lets the payload name an image.
func (w *world) names(t *testing.T, image string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "images.json")
	content := `[{"version": "1.36.2", "images": {"amd64": {"aws": {"us-east-1": "` + image + `"}}}}]`
	NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
	w.images = nodeimage.NewFile(path)
}

// revised is a node whose Machine records which revision of its templates it was made from.
func revised() *world {
	w := settled()
	infrastructure, bootstrap := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	infrastructure.SetUID("i")
	infrastructure.SetGeneration(1)
	bootstrap.SetUID("b")
	bootstrap.SetGeneration(1)
	w.templates[0].Infrastructure = infrastructure
	w.templates[0].Bootstrap = template.Bootstrap{ConfigTemplate: bootstrap, Hash: "bootstrap"}
	w.machine.Annotations[v1alpha1.TemplateRevisionAnnotation] = "i/1"
	w.machine.Annotations[v1alpha1.BootstrapRevisionAnnotation] = "b/1"
	return w
}

func TestRevisions(t *testing.T) {
	renewed := func(pairs ...string) map[string]string {
		annotations := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			annotations[pairs[i]] = pairs[i+1]
		}
		return annotations
	}
	for name, tc := range map[string]struct {
		change  func(*world)
		want    karpcloudprovider.DriftReason
		renewed map[string]string
	}{
		"When nothing has changed, it should write nothing": {func(*world) {}, "", renewed()},
		"When an upgrade of Cluster API makes the same templates read differently, it should find no drift, and take the new hashes": {
			func(w *world) { w.templates[0].ContentHash, w.templates[0].Bootstrap.Hash = "new", "new too" },
			"", renewed(v1alpha1.TemplateHashAnnotation, "new", v1alpha1.BootstrapHashAnnotation, "new too"),
		},
		"When a person changes the template, it should find it": {func(w *world) {
			w.templates[0].Infrastructure.SetGeneration(2)
			w.templates[0].ContentHash = "new"
		}, drift.TemplateDrifted, renewed()},
		"When a person changes the bootstrap template, it should find it": {func(w *world) {
			w.templates[0].Bootstrap.ConfigTemplate.SetGeneration(2)
			w.templates[0].Bootstrap.Hash = "new"
		}, drift.BootstrapDrifted, renewed()},
		"When only a webhook has added defaults to the templates, it should find no drift, and record what they are now": {
			func(w *world) {
				w.machine.Annotations[v1alpha1.TemplateOwnedHashAnnotation], w.machine.Annotations[v1alpha1.BootstrapOwnedHashAnnotation] = "owned", "owned too"
				w.templates[0].OwnedHash, w.templates[0].Bootstrap.OwnedHash = "owned", "owned too"
				w.templates[0].Infrastructure.SetGeneration(2)
				w.templates[0].Bootstrap.ConfigTemplate.SetGeneration(2)
				w.templates[0].ContentHash, w.templates[0].Bootstrap.Hash = "new", "new too"
			},
			"", renewed(v1alpha1.TemplateHashAnnotation, "new", v1alpha1.BootstrapHashAnnotation, "new too",
				v1alpha1.TemplateRevisionAnnotation, "i/2", v1alpha1.BootstrapRevisionAnnotation, "b/2"),
		},
		"When a person changes a template whose webhook adds defaults, it should find it": {func(w *world) {
			w.machine.Annotations[v1alpha1.TemplateOwnedHashAnnotation] = "owned"
			w.templates[0].OwnedHash = "owned otherwise"
			w.templates[0].Infrastructure.SetGeneration(2)
			w.templates[0].ContentHash = "new"
		}, drift.TemplateDrifted, renewed()},
		"When the record of who wrote a template is lost, as by a restore, it should compare the content": {func(w *world) {
			w.machine.Annotations[v1alpha1.TemplateOwnedHashAnnotation] = "owned"
			w.templates[0].Infrastructure.SetUID("j")
		}, "", renewed(v1alpha1.TemplateRevisionAnnotation, "j/1")},
		"When a machine reports nothing about who wrote its template yet, it should write that": {
			func(w *world) { w.templates[0].OwnedHash = "owned" }, "", renewed(v1alpha1.TemplateOwnedHashAnnotation, "owned"),
		},
		"When a machine reports no revision yet, it should compare the content, and write the revision": {func(w *world) {
			delete(w.machine.Annotations, v1alpha1.TemplateRevisionAnnotation)
			delete(w.machine.Annotations, v1alpha1.BootstrapRevisionAnnotation)
		}, "", renewed(v1alpha1.TemplateRevisionAnnotation, "i/1", v1alpha1.BootstrapRevisionAnnotation, "b/1")},
		"When a machine reports no revision and the content is another, it should find it": {func(w *world) {
			delete(w.machine.Annotations, v1alpha1.TemplateRevisionAnnotation)
			w.templates[0].ContentHash = "new"
		}, drift.TemplateDrifted, renewed()},
		"When hashes follow another rule, it should not compare them, and take the new ones": {func(w *world) {
			w.templates[0].Infrastructure.SetGeneration(2)
			w.templates[0].ContentHash, w.templates[0].Bootstrap.Hash = "v2:content", "v2:bootstrap"
		}, "", renewed(v1alpha1.TemplateHashAnnotation, "v2:content", v1alpha1.TemplateRevisionAnnotation, "i/2", v1alpha1.BootstrapHashAnnotation, "v2:bootstrap")},
		"When a machine reports nothing about its templates, it should not make something up": {func(w *world) {
			w.machine.Annotations = map[string]string{v1alpha1.TemplateSourceAnnotation: w.templates[0].Source.Annotation()}
		}, "", renewed()},
	} {
		t.Run(name, func(t *testing.T) {
			w := revised()
			tc.change(w)
			w.expect(t, tc.want)
			NewWithT(t).Expect(w.detector().Renewed(w.nodeClass, w.machine)).To(BeComparableTo(tc.renewed))
		})
	}
	t.Run("When the template isn't known, it should write nothing", func(t *testing.T) {
		w := revised()
		w.templates = nil
		if got := w.detector().Renewed(w.nodeClass, w.machine); len(got) != 0 {
			t.Errorf("renewed %v", got)
		}
	})
}

func TestReasonsAreStable(t *testing.T) {
	t.Run("When people filter by a reason, it should still be called that", func(t *testing.T) {
		got := []karpcloudprovider.DriftReason{drift.NodeClassDrifted, drift.OfferingGone, drift.TemplateDrifted, drift.BootstrapDrifted, drift.NodeImageDrifted, drift.VersionDrifted}
		NewWithT(t).Expect(got).To(BeComparableTo([]karpcloudprovider.DriftReason{"NodeClassDrifted", "OfferingGone", "TemplateDrifted", "BootstrapDrifted", "NodeImageDrifted", "VersionDrifted"}))
	})
}
