// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// awsCommand answers as AWS's command-line tool does, with the samples that imports are tested with.
const awsCommand = `#!/bin/sh
case "$1 $2" in
"ec2 describe-instance-types") cat %[1]s/aws.json ;;
"ec2 describe-spot-price-history") cat %[1]s/aws-spot-prices.json ;;
"pricing get-products") cat %[1]s/aws-prices.json ;;
*) echo "aws has no $*" >&2; exit 1 ;;
esac
`

// refresh is the CronJob that docs/platform/import.md shows, in the API server.
type refresh struct {
	role      *rbacv1.Role
	container corev1.Container
	// path of its programs, and kubeconfig of its ServiceAccount.
	path, kubeconfig string
	// stale is the catalog with prices of another day.
	stale string
}

// applyRefresh applies the example, with all that it takes for granted.
func applyRefresh(t *testing.T) *refresh {
	t.Helper()
	g := NewWithT(t)
	r := &refresh{role: &rbacv1.Role{}}
	account := &corev1.ServiceAccount{}
	for document := range strings.SplitSeq(blockOf(t, "docs/platform/import.md", "# refresh.yaml\n"), "\n---\n") {
		object := &unstructured.Unstructured{}
		g.Expect(yaml.UnmarshalStrict([]byte(document), &object.Object)).To(Succeed())
		namespace := &corev1.Namespace{}
		namespace.Name = object.GetNamespace()
		g.Expect(client.IgnoreAlreadyExists(cluster.admin.Create(t.Context(), namespace))).To(Succeed())
		g.Expect(cluster.admin.Create(t.Context(), object)).To(Succeed())
		switch object.GetKind() {
		case "ServiceAccount":
			g.Expect(cluster.admin.Get(t.Context(), client.ObjectKeyFromObject(object), account)).To(Succeed())
		case "Role":
			g.Expect(cluster.admin.Get(t.Context(), client.ObjectKeyFromObject(object), r.role)).To(Succeed())
		case "CronJob":
			job := &batchv1.CronJob{}
			g.Expect(cluster.admin.Get(t.Context(), client.ObjectKeyFromObject(object), job)).To(Succeed())
			pod := job.Spec.JobTemplate.Spec.Template.Spec
			g.Expect(pod.ServiceAccountName).To(Equal(account.Name))
			g.Expect(pod.Containers).To(HaveLen(1))
			r.container = pod.Containers[0]
		}
	}
	dir := t.TempDir()
	r.path, r.kubeconfig = filepath.Join(dir, "bin"), filepath.Join(dir, "kubeconfig")
	g.Expect(os.Mkdir(r.path, 0o755)).To(Succeed())
	samples, err := filepath.Abs(filepath.Join(root, "cli/catalog/importer/testdata"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(r.path, "aws"), fmt.Appendf(nil, awsCommand, samples), 0o755)).To(Succeed())
	g.Expect(os.Symlink(cluster.programs["autonode"], filepath.Join(r.path, "autonode"))).To(Succeed())
	r.writeKubeconfig(t, account)

	out, err := exec.CommandContext(t.Context(), cluster.programs["autonode"], "catalog", "import", "aws", "-f", filepath.Join(samples, "aws.json"),
		"--prices", filepath.Join(samples, "aws-prices.json"), "--template", "general", "--name", "general", "-n", account.Namespace).Output()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(out)).To(ContainSubstring(`price: "0.096"`))
	r.stale = strings.ReplaceAll(string(out), `price: "0.096"`, `price: "9"`)
	return r
}

// blockOf is the block of a page that begins with a text.
func blockOf(t *testing.T, path, beginning string) string {
	t.Helper()
	for _, p := range documentation(t) {
		for _, b := range p.blocks {
			if p.path == path && strings.HasPrefix(b.text, beginning) {
				return strings.TrimPrefix(b.text, beginning)
			}
		}
	}
	t.Fatalf("no block of %s begins with %q", path, beginning)
	return ""
}

// writeKubeconfig lets the programs of the CronJob be its ServiceAccount, as they are in a pod.
func (r *refresh) writeKubeconfig(t *testing.T, account *corev1.ServiceAccount) {
	t.Helper()
	g := NewWithT(t)
	token := &authenticationv1.TokenRequest{}
	g.Expect(cluster.admin.SubResource("token").Create(t.Context(), account, token)).To(Succeed())
	config, err := clientcmd.LoadFromFile(cluster.kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{account.Name: {Token: token.Status.Token}}
	for _, context := range config.Contexts {
		context.AuthInfo = account.Name
	}
	g.Expect(clientcmd.WriteToFile(*config, r.kubeconfig)).To(Succeed())
}

// run makes the catalog stale, runs the container's command, and returns what it prints and the catalog after it.
func (r *refresh) run(t *testing.T, g Gomega) (out, prices string, err error) {
	t.Helper()
	c := &unstructured.Unstructured{}
	g.Expect(yaml.UnmarshalStrict([]byte(r.stale), &c.Object)).To(Succeed())
	g.Expect(client.IgnoreNotFound(cluster.admin.Delete(t.Context(), c.DeepCopy()))).To(Succeed())
	g.Expect(cluster.admin.Create(t.Context(), c)).To(Succeed())
	cmd := exec.CommandContext(t.Context(), r.container.Command[0], append(slices.Clone(r.container.Command[1:]), r.container.Args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"PATH=" + r.path + ":/usr/bin:/bin", "KUBECONFIG=" + r.kubeconfig, "HOME=" + cmd.Dir}
	raw, err := cmd.CombinedOutput()
	g.Expect(cluster.admin.Get(t.Context(), client.ObjectKeyFromObject(c), c)).To(Succeed())
	return string(raw), fmt.Sprint(c.Object["spec"]), err
}

func TestRefresh(t *testing.T) {
	r := applyRefresh(t)
	succeeds := func(g Gomega) {
		out, prices, err := r.run(t, g)
		g.Expect(err).NotTo(HaveOccurred(), out)
		g.Expect(out).To(HaveSuffix("0 added, 0 removed, 1 changed; no node is replaced\ninstancetypecatalog.karpenter.cluster.x-k8s.io/general patched\n"))
		g.Expect(prices).To(And(ContainSubstring("price:0.096"), Not(ContainSubstring("price:9]"))))
	}
	t.Run("When the documented CronJob runs with the rights of its ServiceAccount, it should refresh the prices", func(t *testing.T) {
		NewWithT(t).Eventually(succeeds).Should(Succeed())
	})
	granted := r.role.DeepCopy().Rules
	for i, rule := range granted {
		for _, verb := range rule.Verbs {
			t.Run(fmt.Sprintf("When rule %d of its Role lacks %s, it should be refused and leave the catalog as it is", i, verb), func(t *testing.T) {
				r.role.Rules = slices.Clone(granted)
				r.role.Rules[i].Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(each string) bool { return each == verb })
				if len(r.role.Rules[i].Verbs) == 0 {
					r.role.Rules = slices.Delete(r.role.Rules, i, i+1)
				}
				g := NewWithT(t)
				g.Expect(cluster.admin.Update(t.Context(), r.role)).To(Succeed())
				g.Eventually(func(g Gomega) {
					out, prices, err := r.run(t, g)
					g.Expect(err).To(HaveOccurred())
					g.Expect(out).To(And(ContainSubstring("forbidden"), ContainSubstring("cannot "+verb+" resource \"instancetypecatalogs\"")))
					g.Expect(prices).To(ContainSubstring("price:9]"))
				}).Should(Succeed())
				r.role.Rules = granted
				g.Expect(cluster.admin.Update(t.Context(), r.role)).To(Succeed())
				g.Eventually(succeeds).Should(Succeed())
			})
		}
	}
}

// tableOf is a table of 1,400 instance types, which is too much for one catalog; dearer names those that cost more than the others.
func tableOf(t *testing.T, dearer ...string) string {
	t.Helper()
	var table strings.Builder
	table.WriteString("name,cpu,memory,zones,capacityType,price")
	note := strings.Repeat("n", 60)
	for i := range 12 {
		fmt.Fprintf(&table, ",label:example.com/note-%d", i)
	}
	for i := range 1400 {
		name, price := fmt.Sprintf("t%04d.large", i), "0.096"
		if slices.Contains(dearer, name) {
			price = "0.100"
		}
		fmt.Fprintf(&table, "\n%s,2,8Gi,us-east-1a,on-demand,%s%s", name, price, strings.Repeat(","+note, 12))
	}
	path := filepath.Join(t.TempDir(), "types.csv")
	if err := os.WriteFile(path, []byte(table.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRefreshOfParts(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	namespace := &corev1.Namespace{}
	namespace.Name = "catalogs-in-parts"
	g.Expect(client.IgnoreAlreadyExists(cluster.admin.Create(ctx, namespace))).To(Succeed())
	patches := filepath.Join(t.TempDir(), "patches.yaml")
	g.Expect(os.WriteFile(patches, []byte("- {op: add, path: /spec/instanceType, valueFrom: {variable: instanceType}}\n"), 0o600)).To(Succeed())
	out, err := exec.CommandContext(ctx, cluster.programs["autonode"], "catalog", "import", "csv", "-f", tableOf(t), "--patches", patches,
		"--template", "KwokMachineTemplate/general", "--name", "large", "-n", namespace.Name).Output()
	g.Expect(err).NotTo(HaveOccurred())
	var parts []*unstructured.Unstructured
	for document := range strings.SplitSeq(string(out), "\n---\n") {
		part := &unstructured.Unstructured{}
		g.Expect(yaml.UnmarshalStrict([]byte(document), &part.Object)).To(Succeed())
		g.Expect(cluster.admin.Create(ctx, part)).To(Succeed())
		parts = append(parts, part)
	}
	g.Expect(parts).To(HaveLen(2), "the table has to be too large for one catalog")

	t.Run("When a price of each part has changed, it should compare all parts, and write those that changed", func(t *testing.T) {
		g := NewWithT(t)
		refresh := func(dearer ...string) string {
			out, err := exec.CommandContext(ctx, cluster.programs["autonode"], "catalog", "refresh", "csv", "-f", tableOf(t, dearer...),
				"--name", "large", "-n", namespace.Name, "--kubeconfig", cluster.kubeconfig).Output()
			g.Expect(err).NotTo(HaveOccurred())
			return string(out)
		}
		const resource = "instancetypecatalog.karpenter.cluster.x-k8s.io/"
		g.Expect(refresh("t0000.large", "t1399.large")).To(Equal("~ t0000.large: offerings: 1 dearer\n~ t1399.large: offerings: 1 dearer\n" +
			"0 added, 0 removed, 2 changed; no node is replaced\n" + resource + "large patched\n" + resource + "large-2 patched\n"))
		g.Expect(refresh("t0000.large")).To(Equal("~ t1399.large: offerings: 1 cheaper\n" +
			"0 added, 0 removed, 1 changed; no node is replaced\n" + resource + "large unchanged\n" + resource + "large-2 patched\n"))
	})
}
