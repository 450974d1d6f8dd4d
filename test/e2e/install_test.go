// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/charts"
	localworld "github.com/autonode-io/autonode/test/world"
)

const (
	operatorName    = "autonode-operator"
	hostedClusters  = "hostedclusters." + v1beta1.Group
	deletionPolicy  = "deletion." + v1beta1.Group
	pullSecretName  = "registry-credentials"
	karpenterMemory = "300Mi"
)

// installation is a hosted cluster whose operator comes and goes.
type installation struct {
	*cluster
	helm *charts.Helm
	// dir holds Helm's files. The folder of a subtest has its name, and Helm takes a comma for the end of a path.
	dir string
	// changes of the HostedCluster that an operator had to see.
	changes int
}

// Story 22: an operator that kustomize installed is deleted by accident, Helm installs another one, upgrades and uninstalls it, and the CRDs are
// deleted. No node goes until the deletion is confirmed. The world is this story's own, because its operator goes.
func TestInstall(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	i := &installation{cluster: ownWorld(t, blue)[0], dir: t.TempDir()}
	var err error
	i.helm, err = charts.NewHelm(t.Context(), filepath.Join("..", ".."), charts.Helm4, i.dir)
	g.Expect(err).NotTo(HaveOccurred())
	i.helm.Env = append(i.helm.Env, "KUBECONFIG="+i.world.Kubeconfig(localworld.Management))
	i.enable(t, initialRelease)
	i.nodePool(t, "general")
	i.workload(t, "web", 2, "100m", apart)
	i.waitRunning(t, "web")
	before := i.names(g, t.Context())
	g.Expect(before).To(HaveLen(2))
	disrupted := i.watchDisruptions(t)

	t.Run("When kubectl deletes the whole installation, the CRDs, the HostedClusters and the nodes should stay", func(t *testing.T) {
		g := NewWithT(t)
		out, err := i.kubectl(t, "delete", "-k", filepath.Join(i.world.Dir(), "manifests", "overlay"), "--timeout=2m")
		g.Expect(err).To(HaveOccurred())
		g.Expect(out).To(And(ContainSubstring("drains the nodes of all hosted clusters"), ContainSubstring("kubectl annotate crd "+hostedClusters)))
		g.Eventually(func(g Gomega, ctx context.Context) {
			err := i.management.Get(ctx, client.ObjectKey{Name: localworld.OperatorNamespace}, &corev1.Namespace{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the operator's namespace: %v", err)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		i.expectUntouched(t, before)
	})
	t.Run("When Helm installs the operator, it should go on where the other one ended", func(t *testing.T) { i.installed(t, before) })
	t.Run("When Helm upgrades with a setting of Karpenter, it should roll out Karpenter and keep the nodes", func(t *testing.T) {
		i.upgraded(t, before)
	})
	t.Run("When Helm uninstalls, the CRDs and their guard, the HostedClusters and the nodes should stay", func(t *testing.T) {
		i.uninstalled(t, before)
	})
	t.Run("When the CRDs are deleted without the guard, the operator should keep the nodes", func(t *testing.T) { i.unguarded(t, before) })
	t.Run("When the HostedClusters are restored as the documentation says, they should have the same nodes", func(t *testing.T) {
		i.restored(t, before)
	})
	expectUndisturbed(t, disrupted)
	t.Run("When the deletion of the CRDs is confirmed, the nodes should drain, and the CRD should go", func(t *testing.T) {
		g := NewWithT(t)
		_, err := i.kubectl(t, "annotate", "crd", hostedClusters, v1beta1.ConfirmDeletionAnnotation+"=true")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = i.kubectl(t, "delete", "crd", hostedClusters, "--wait=false")
		g.Expect(err).NotTo(HaveOccurred())
		i.waitNothingLeft(t)
		i.waitNoDefinition(t)
	})
}

// waitNoDefinition waits until the CRD of HostedClusters has gone.
func (i *installation) waitNoDefinition(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		err := i.management.Get(ctx, client.ObjectKey{Name: hostedClusters}, &apiextensionsv1.CustomResourceDefinition{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the CRD: %v", err)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// names are those of Karpenter's nodes.
func (i *installation) names(g Gomega, ctx context.Context) sets.Set[string] {
	names := sets.New[string]()
	for _, node := range i.nodes(g, ctx) {
		g.Expect(node.DeletionTimestamp).To(BeNil(), node.Name)
		names.Insert(node.Name)
	}
	return names
}

// kubectl returns what kubectl prints.
func (i *installation) kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), i.world.Kubectl(), append([]string{"--kubeconfig", i.world.Kubeconfig(localworld.Management)}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// expectUntouched expects that nothing of AutoNode's is going, and that the nodes are those from before.
func (i *installation) expectUntouched(t *testing.T, before sets.Set[string]) {
	t.Helper()
	g := NewWithT(t)
	for _, name := range []string{hostedClusters, "controlplanecomponents." + v1beta1.Group} {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(i.management.Get(t.Context(), client.ObjectKey{Name: name}, definition)).To(Succeed())
		g.Expect(definition.DeletionTimestamp).To(BeNil(), name)
	}
	g.Expect(i.hostedCluster(g, t.Context()).DeletionTimestamp).To(BeNil())
	g.Expect(i.names(g, t.Context())).To(Equal(before))
}

// install installs or upgrades both charts with values beside those that the world needs.
func (i *installation) install(t *testing.T, values map[string]any) error {
	t.Helper()
	g := NewWithT(t)
	repository, digest, _ := strings.Cut(i.world.OperatorImage(), "@")
	all := map[string]any{
		"image":            map[string]any{"repository": repository, "digest": digest},
		"imagePullSecrets": []any{map[string]any{"name": pullSecretName}},
		"guestNetworks":    []any{"127.0.0.0/8"}, "registryNetworks": []any{"127.0.0.0/8"},
	}
	for key, value := range values {
		all[key] = value
	}
	content, err := yaml.Marshal(all)
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(i.dir, "values.yaml")
	g.Expect(os.WriteFile(file, content, 0o600)).To(Succeed())
	for _, args := range [][]string{{charts.CRDs, "--take-ownership"}, {charts.Operator, "--values", file}} {
		chart := args[0]
		args = append([]string{
			"upgrade", "--install", chart, filepath.Join("..", "..", "charts", chart), "--namespace", localworld.OperatorNamespace, "--wait", "--timeout", "3m",
		}, args[1:]...)
		if _, err := i.helm.Run(t.Context(), args...); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the operator's namespace, with the credentials of the registry.
func (i *installation) prepare(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: localworld.OperatorNamespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: localworld.OperatorNamespace, Name: pullSecretName}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: i.world.Registry().DockerConfigJSON()},
		},
	} {
		g.Expect(client.IgnoreAlreadyExists(i.management.Create(t.Context(), object))).To(Succeed())
	}
}

// waitObserved changes the HostedCluster, and waits until the operator that runs now has seen it: what the status said before may be old.
func (i *installation) waitObserved(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	i.changes++
	i.patch(t, func(spec *v1beta1.HostedClusterSpec) {
		spec.NodeDrain = &v1beta1.NodeDrain{Timeout: &scalar.Duration{Duration: time.Hour + time.Duration(i.changes)*time.Minute}}
	})
	g.Eventually(func(g Gomega, ctx context.Context) {
		hosted := i.hostedCluster(g, ctx)
		g.Expect(hosted.Status.ObservedGeneration).To(Equal(hosted.Generation))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	i.waitEnabled(t, initialRelease)
}

func (i *installation) installed(t *testing.T, before sets.Set[string]) {
	i.prepare(t)
	NewWithT(t).Expect(i.install(t, nil)).To(Succeed())
	i.waitObserved(t)
	i.expectUntouched(t, before)
	i.scale(t, "web", 3)
	i.waitRunning(t, "web")
	before.Insert(i.names(NewWithT(t), t.Context()).UnsortedList()...)
}

func (i *installation) upgraded(t *testing.T, before sets.Set[string]) {
	g := NewWithT(t)
	settings := map[string]any{
		"logLevel":  "debug",
		"karpenter": map[string]any{"resources": map[string]any{"requests": map[string]any{"memory": karpenterMemory}}},
	}
	g.Expect(i.install(t, settings)).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		deployment := &appsv1.Deployment{}
		g.Expect(i.management.Get(ctx, client.ObjectKey{Namespace: i.namespace(), Name: v1beta1.KarpenterComponent}, deployment)).To(Succeed())
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Resources.Requests.Memory().String()).To(Equal(karpenterMemory))
		g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
		g.Expect(deployment.Status.UpdatedReplicas).To(Equal(*deployment.Spec.Replicas))
		g.Expect(deployment.Status.AvailableReplicas).To(Equal(*deployment.Spec.Replicas))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	i.waitObserved(t)
	i.expectUntouched(t, before)

	g.Expect(i.install(t, map[string]any{"karpenter": map[string]any{"replicas": 3}})).To(MatchError(ContainSubstring("additional properties 'replicas' not allowed")))
	i.waitObserved(t)
}

func (i *installation) uninstalled(t *testing.T, before sets.Set[string]) {
	g := NewWithT(t)
	for _, chart := range []string{charts.Operator, charts.CRDs} {
		_, err := i.helm.Run(t.Context(), "uninstall", chart, "--namespace", localworld.OperatorNamespace, "--wait", "--timeout", "2m")
		g.Expect(err).NotTo(HaveOccurred())
	}
	err := i.management.Get(t.Context(), client.ObjectKey{Namespace: localworld.OperatorNamespace, Name: operatorName}, &appsv1.Deployment{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the operator: %v", err)
	out, err := i.kubectl(t, "delete", "crd", hostedClusters)
	g.Expect(err).To(HaveOccurred())
	g.Expect(out).To(ContainSubstring(deletionPolicy))
	i.expectUntouched(t, before)
}

// unguarded deletes the CRD as a second kubectl delete -k would: the first has deleted the policy.
func (i *installation) unguarded(t *testing.T, before sets.Set[string]) {
	g := NewWithT(t)
	g.Expect(i.install(t, nil)).To(Succeed())
	i.waitObserved(t)
	for _, object := range []client.Object{
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: deletionPolicy}},
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: deletionPolicy}},
	} {
		g.Expect(i.management.Delete(t.Context(), object)).To(Succeed())
	}
	g.Eventually(func() error {
		_, err := i.kubectl(t, "delete", "crd", hostedClusters, "--wait=false")
		return err
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed(), "an API server needs a moment to forget a policy")
	g.Eventually(func(g Gomega, ctx context.Context) {
		enabled := i.condition(g, ctx, v1beta1.AutoNodeEnabled)
		g.Expect(enabled).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.AutoNodeDrainUnconfirmedReason)))
		g.Expect(enabled.Message).To(ContainSubstring(fmt.Sprintf("%d nodes keep running", len(before))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(i.names(g, t.Context())).To(Equal(before))
}

// restored does what docs/install.md says to do after an accident.
func (i *installation) restored(t *testing.T, before sets.Set[string]) {
	g := NewWithT(t)
	saved := i.hostedCluster(g, t.Context())
	_, err := i.kubectl(t, "-n", localworld.OperatorNamespace, "delete", "deployment", operatorName, "--cascade=foreground")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = i.kubectl(t, "-n", saved.Namespace, "patch", "anhc", saved.Name, "--type=merge", `--patch={"metadata":{"finalizers":null}}`)
	g.Expect(err).NotTo(HaveOccurred())
	i.waitNoDefinition(t)
	g.Expect(i.install(t, nil)).To(Succeed())
	g.Expect(i.management.Create(t.Context(), &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: saved.Namespace, Name: saved.Name, Labels: saved.Labels, Annotations: saved.Annotations}, Spec: saved.Spec,
	})).To(Succeed())
	i.waitObserved(t)
	i.expectUntouched(t, before)
}
