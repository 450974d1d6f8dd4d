// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/cli/condition"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
	"github.com/autonode-io/autonode/manifests"
)

// lines prints a report as text, after a line break.
func lines(t *testing.T, report *Report) string {
	t.Helper()
	out := bytes.NewBufferString("\n")
	NewWithT(t).Expect(report.print(out)).To(Succeed())
	return out.String()
}

func TestReport(t *testing.T) {
	report := &Report{}
	report.ok("Kubernetes", "v1.36.3")
	report.warn("Operator", "wait", "1 of 2 replicas are available")
	t.Run("When nothing is wrong, it should say so, and count warnings", func(t *testing.T) {
		const want = `
✓ Kubernetes: v1.36.3
! Operator: 1 of 2 replicas are available
    wait
2 checks: no failures, 1 warning
`
		if diff := cmp.Diff(want, lines(t, report)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		NewWithT(t).Expect(report.err()).To(Succeed())
	})
	t.Run("When something is wrong, it should be an error", func(t *testing.T) {
		g := NewWithT(t)
		report.condition(Wrong, "HostedCluster a/b", condition.Fix("ReleaseMissing"), &metav1.Condition{Type: "ReleaseResolved", Reason: "ReleaseMissing", Message: "there is none"})
		g.Expect(lines(t, report)).To(HaveSuffix("✗ HostedCluster a/b: ReleaseResolved (ReleaseMissing): there is none\n    set " +
			"spec.release.image, or the operator's flag --karpenter-image\n"))
		g.Expect(report.err()).To(MatchError("1 of 3 checks failed; fix the failures above, in order"))
	})
	t.Run("When something can't be read, it should distinguish what may not be read from what isn't there", func(t *testing.T) {
		report := &Report{}
		report.Unread("Secrets", apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", nil))
		report.Unread("HostedClusters", &meta.NoKindMatchError{})
		report.Unread("Pods", io.ErrUnexpectedEOF)
		NewWithT(t).Expect(report.Checks).To(HaveExactElements(
			And(HaveField("Result", Warning), HaveField("Message", HavePrefix("not checked: secrets \"a\" is forbidden"))),
			Check{Subject: "HostedClusters", Result: Wrong, Message: "the cluster doesn't serve them", Fix: installFix},
			And(HaveField("Result", Wrong), HaveField("Message", "couldn't be read: unexpected EOF")),
		))
	})
}

func TestKubernetes(t *testing.T) {
	for version, want := range map[string]Result{"v1.31.0": OK, "v1.36.3+k3s1": OK, "v1.30.9": Wrong, "": Warning} {
		t.Run("When the version is "+version+", it should be "+string(want), func(t *testing.T) {
			m := &managementCheck{Report: &Report{}}
			m.kubernetes(version)
			NewWithT(t).Expect(m.Checks).To(ConsistOf(HaveField("Result", want)))
		})
	}
}

// installed returns a check of a cluster with AutoNode's definitions as they are installed.
func installed(t *testing.T) *managementCheck {
	t.Helper()
	g := NewWithT(t)
	objects, err := manifests.Render(manifests.Options{Image: manifests.Operator + ":any"})
	g.Expect(err).NotTo(HaveOccurred())
	m := &managementCheck{Report: &Report{}, installed: objects, operatorNamespace: manifests.Namespace}
	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		crd := apiextensionsv1.CustomResourceDefinition{}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd)).To(Succeed())
		crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
		m.definitions = append(m.definitions, crd)
	}
	return m
}

func TestDefinitions(t *testing.T) {
	spec := func(m *managementCheck, name string) map[string]apiextensionsv1.JSONSchemaProps {
		return m.definition(name).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	}
	const hostedClusters = "hostedclusters.autonode.io"
	for _, test := range []struct {
		name   string
		change func(*managementCheck)
		want   string
	}{
		{"When they are this program's, it should count them", func(*managementCheck) {}, "✓ CustomResourceDefinitions: 5 installed, at this program's version"},
		{"When one is older, it should name what it lacks", func(m *managementCheck) { delete(spec(m, hostedClusters), "nodeDrain") },
			"✗ CustomResourceDefinition " + hostedClusters + ": older than this program: it lacks spec.nodeDrain\n"},
		{"When one is newer, it should name what it has", func(m *managementCheck) {
			spec(m, hostedClusters)["future"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		}, "! CustomResourceDefinition " + hostedClusters + ": newer than this program: it also has spec.future\n"},
		{"When one isn't served, it should say so", func(m *managementCheck) { m.definition(hostedClusters).Status.Conditions = nil },
			"✗ CustomResourceDefinition " + hostedClusters + ": it isn't served yet\n"},
		{"When one is missing, it should name it", func(m *managementCheck) { m.definitions = m.definitions[1:] },
			"✗ CustomResourceDefinitions: missing: capacityaccounts.autonode.io\n"},
		{"When a version isn't served, it should name it", func(m *managementCheck) { m.definition(hostedClusters).Spec.Versions[0].Served = false },
			": older than this program: it lacks version v1beta1\n"},
		{"When there is none, it should say how to install AutoNode", func(m *managementCheck) { m.definitions = nil },
			"✗ CustomResourceDefinitions: AutoNode isn't installed in this cluster\n    install AutoNode with `autonode install`"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := installed(t)
			test.change(m)
			g := NewWithT(t)
			g.Expect(m.autoNode()).To(Equal(len(m.definitions) > 0))
			g.Expect(lines(t, m.Report)).To(ContainSubstring(test.want))
		})
	}
}

func TestProviders(t *testing.T) {
	crd := func(group, kind string, labels map[string]string) apiextensionsv1.CustomResourceDefinition {
		crd := apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: kind + "." + group, Labels: labels}}
		crd.Spec.Group, crd.Spec.Names.Kind = group, kind
		return crd
	}
	const infrastructureGroup, bootstrapGroup = "infrastructure.cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io"
	t.Run("When there are providers, it should name their contract and whether they have a profile", func(t *testing.T) {
		m := &managementCheck{Report: &Report{}, definitions: []apiextensionsv1.CustomResourceDefinition{
			crd(infrastructureGroup, "AWSMachineTemplate", map[string]string{"cluster.x-k8s.io/v1beta1": "v1beta2"}),
			crd(infrastructureGroup, "VSphereMachineTemplate", map[string]string{"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2"}),
			crd(infrastructureGroup, "NewMachineTemplate", map[string]string{"cluster.x-k8s.io/v1beta2": "v1"}),
			crd(infrastructureGroup, "OldMachineTemplate", map[string]string{"cluster.x-k8s.io/v1alpha3": "v1"}),
			crd("example.com", "ForeignMachineTemplate", nil), crd(infrastructureGroup, "AWSClusterTemplate", nil),
			crd(bootstrapGroup, "KubeadmConfigTemplate", nil),
		}}
		m.providers()
		const want = `
✓ Infrastructure provider of AWSMachineTemplate: contract v1beta1, with a built-in profile
✓ Infrastructure provider of VSphereMachineTemplate: contract v1beta2, with a built-in profile
! Infrastructure provider of NewMachineTemplate: contract v1beta2, without a built-in profile: AutoNode reads no capacity, image or capacity type from its templates' spec
    declare capacity in the templates' status.capacity or annotations, or write a profile: docs/reference/infrastructure.md
✗ Infrastructure provider of OldMachineTemplate: CustomResourceDefinition OldMachineTemplate.infrastructure.cluster.x-k8s.io has no Cluster API contract label, such as cluster.x-k8s.io/v1beta2
    install a version of the provider that supports Cluster API 1.14
✓ Bootstrap providers: KubeadmConfigTemplate
`
		if diff := cmp.Diff(want, lines(t, m.Report)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("When there is none, it should say how to install one", func(t *testing.T) {
		m := &managementCheck{Report: &Report{}, definitions: []apiextensionsv1.CustomResourceDefinition{}}
		m.providers()
		m.clusterAPI()
		NewWithT(t).Expect(m.Checks).To(HaveExactElements(
			And(HaveField("Result", Wrong), HaveField("Fix", ContainSubstring("clusterctl init --infrastructure"))),
			And(HaveField("Result", Warning), HaveField("Fix", ContainSubstring("clusterctl init --bootstrap"))),
			And(HaveField("Result", Wrong), HaveField("Message", "there is no CustomResourceDefinition clusters.cluster.x-k8s.io")),
		))
	})
}

func TestControlPlane(t *testing.T) {
	healthy := func() *clusterv1.Cluster {
		return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}, Status: clusterv1.ClusterStatus{
			Phase:          "Provisioned",
			Initialization: clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(true)},
		}}
	}
	for _, test := range []struct {
		name   string
		change func(*clusterv1.Cluster)
		want   []Result
		text   string
	}{
		{"When it is ready, it should say so", func(*clusterv1.Cluster) {}, []Result{OK}, "✓ Cluster clusters-blue/blue: Provisioned, control plane initialized"},
		{"When it is being deleted, it should say nothing else", func(c *clusterv1.Cluster) {
			c.DeletionTimestamp, c.Status.Initialization = ptr.To(metav1.Now()), clusterv1.ClusterInitializationStatus{}
		}, []Result{Wrong}, "it is being deleted"},
		{"When it is paused, it should warn", func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) }, []Result{Warning}, "it is paused, and so is AutoNode"},
		{"When the provider can't log in, it should have its words", func(c *clusterv1.Cluster) {
			c.Status.Conditions = []metav1.Condition{{Type: clusterv1.ClusterInfrastructureReadyCondition, Status: metav1.ConditionFalse,
				Reason: "LoginFailed", Message: "incorrect password"}}
		}, []Result{Wrong}, "LoginFailed: incorrect password"},
		{"When nothing has happened yet, it should name both", func(c *clusterv1.Cluster) { c.Status = clusterv1.ClusterStatus{} },
			[]Result{Wrong, Wrong}, "its control plane isn't initialized"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cluster := healthy()
			test.change(cluster)
			g, report := NewWithT(t), &Report{}
			report.ControlPlane(cluster)
			g.Expect(report.Checks).To(HaveLen(len(test.want)))
			for i, check := range report.Checks {
				g.Expect(check.Result).To(Equal(test.want[i]))
			}
			g.Expect(lines(t, report)).To(ContainSubstring(test.text))
		})
	}
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	report := &Report{}
	report.condition(Wrong, hostile, hostile, &metav1.Condition{Type: hostile, Reason: hostile, Message: hostile})
	printertest.Harmless(t, "check", func(to io.Writer) error { return report.print(to) })
	printertest.Harmless(t, "check -o json", func(to io.Writer) error { return printer.Encode(to, "json", report) })
}

func TestKarpenter(t *testing.T) {
	key := client.ObjectKey{Namespace: "clusters-blue", Name: "karpenter"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	for _, name := range []string{"there", "gone"} {
		deployment.Spec.Template.Spec.Volumes = append(deployment.Spec.Template.Spec.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}},
		})
	}
	there := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "there"}}
	t.Run("When no replica is ready and a mounted Secret is missing, it should warn of both", func(t *testing.T) {
		g, report := NewWithT(t), &Report{}
		g.Expect(report.Karpenter(t.Context(), fake.NewClientBuilder().WithObjects(deployment, there).Build(), key)).To(Succeed())
		g.Expect(report.Checks).To(ConsistOf(
			And(HaveField("Result", Warning), HaveField("Message", "Karpenter has no ready replica, so no node is launched or removed")),
			And(HaveField("Result", Warning), HaveField("Message", "Secret clusters-blue/gone is missing; new replicas of Karpenter can't start without it")),
		))
	})
	t.Run("When it is to have no replica, as in a pause or a sleep, it should warn of the Secret alone", func(t *testing.T) {
		g, report, asleep := NewWithT(t), &Report{}, deployment.DeepCopy()
		asleep.Spec.Replicas = ptr.To[int32](0)
		g.Expect(report.Karpenter(t.Context(), fake.NewClientBuilder().WithObjects(asleep, there).Build(), key)).To(Succeed())
		g.Expect(report.Checks).To(ConsistOf(HaveField("Message", ContainSubstring("Secret clusters-blue/gone is missing"))))
	})
	t.Run("When there is no Deployment, it should leave that to the component", func(t *testing.T) {
		report := &Report{}
		NewWithT(t).Expect(report.Karpenter(t.Context(), fake.NewClientBuilder().Build(), key)).To(Succeed())
		NewWithT(t).Expect(report.Checks).To(BeEmpty())
	})
}
