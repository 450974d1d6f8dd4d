// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/message"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity/cost"
	"github.com/autonode-io/autonode/karpenter/explain"
	"github.com/autonode-io/autonode/payload"
)

// hostile sets a terminal's title, clears it, writes its clipboard, reverses text and forges a line and a cell.
const hostile = "x\x1b]0;owned\x07\x1b[2J\x1b]52;c;cm0gLXJmIC8=\x07\u009b31m\u202e\x7f\b\rx\nFORGED\tx"

// hostileYAML is hostile in a file of YAML, without DEL and C1, which the parser rejects.
var hostileYAML = func() string {
	quoted, err := json.Marshal(strings.NewReplacer("\u009b", "", "\x7f", "").Replace(hostile))
	if err != nil {
		panic(err)
	}
	return message.Visible(string(quoted))
}()

// TestHostileOutput is whoever may write events, conditions or names in a cluster, and writes to the terminal of who looks.
func TestHostileOutput(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: hostile}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}, Spec: corev1.PodSpec{NodeName: "a"}}
	blocked := &corev1.Event{InvolvedObject: corev1.ObjectReference{UID: "a"}, Reason: events.Unconsolidatable, Message: hostile}
	waiting := ready("b", func(c *karpenterv1.NodeClaim) {
		c.Status.NodeName, c.Labels[karpenterv1.NodePoolLabelKey], c.Labels[corev1.LabelInstanceTypeStable] = "", hostile, hostile
		c.StatusConditions().SetFalse(karpenterv1.ConditionTypeLaunched, "X", hostile)
	})
	waiting.UID = types.UID("b")
	refusals := []explain.Refusal{{Reason: hostile, Count: 1, Names: []string{hostile}}}
	podAnswer := &explain.PodAnswer{
		Pod: hostile, Summary: hostile, Waits: []string{hostile}, Nodes: refusals, Missing: []string{hostile},
		NodePools: []explain.NodePoolAnswer{{
			Name: hostile, Reason: hostile, Refused: refusals, Accepted: []explain.Accepted{{InstanceType: hostile, Zone: hostile, CapacityType: hostile}}, AcceptedCount: 2,
		}},
	}
	nodeAnswer := &explain.NodeAnswer{
		Node: hostile, Summary: hostile, Blocking: []string{hostile}, Facts: []string{hostile}, Missing: []string{hostile},
		Methods: []explain.MethodAnswer{{Name: hostile, Reason: hostile}},
	}
	costs := []accountCost{{name: hostile, problems: []string{hostile}, Report: &cost.Report{
		Rows: []cost.Row{{Key: cost.Key{Cluster: hostile, NodePool: hostile}}}, Commitments: []cost.CommitmentUse{{Name: hostile}},
	}}}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: hostile},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: hostile}}}}
	release := &payload.Release{Version: hostile, Previous: []string{hostile}, Image: hostile, Digest: hostile,
		Components: map[string]payload.Component{hostile: {Image: hostile, Versions: map[string]string{hostile: hostile}, CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}},
		NodeImages: payload.NodeImages{hostile: {hostile: {hostile: hostile}}}}
	hostedCluster := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: hostile, Name: hostile},
		Spec: v1beta1.HostedClusterSpec{InfraID: hostile, Release: v1beta1.Release{Image: hostile}}}
	catalog := &v1alpha1.InstanceTypeCatalog{ObjectMeta: metav1.ObjectMeta{Name: hostile, Labels: map[string]string{hostile: hostile}}}

	file := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
		return path
	}
	const head = "apiVersion: karpenter.cluster.x-k8s.io/v1alpha1\nkind: InstanceTypeCatalog\nmetadata: {name: a}\nspec:\n  templateRef: {apiGroup: a, kind: XTemplate, name: b}\n"
	empty := file("empty.yaml", head+"  instanceTypes: []\n")
	one := file("one.yaml", head+"  instanceTypes: [{name: "+hostileYAML+", capacity: {cpu: 1, memory: 1Gi}}]\n")
	misnamed := file("misnamed.yaml", strings.Replace(head, "name: b", "name: "+hostileYAML, 1)+"  instanceTypes: [{name: a, capacity: {cpu: 1, memory: 1Gi}}]\n")
	offers := file("offers.yaml", head+"  instanceTypes: [{name: "+hostileYAML+", capacity: {cpu: 1, memory: 1Gi}, offerings: [{zones: ["+hostileYAML+"], price: '1'}]}]\n")
	templates := file("templates.yaml", templateNodeClass+"---\n"+strings.Replace(cloudTemplate("c4", "[]"), "name: c4", "name: "+hostileYAML, 1))
	program := func(args ...string) func(io.Writer) error {
		return func(out io.Writer) error {
			cmd := newCommand("autonode")
			cmd.SetArgs(args)
			cmd.SetOut(out)
			cmd.SetErr(out)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				printError(out, err)
			}
			return nil
		}
	}
	printed := func(show func(io.Writer)) func(io.Writer) error {
		return func(out io.Writer) error { show(out); return nil }
	}

	for name, show := range map[string]func(io.Writer) error{
		"nodes": func(out io.Writer) error {
			return printNodes(out, viewOf(ready("a", nil), node, pod, blocked, waiting).rows(""), func(a, b *nodeRow) int { return strings.Compare(a.name, b.name) })
		},
		"why pod":                 printed(func(out io.Writer) { printPodAnswer(out, podAnswer) }),
		"why node":                printed(func(out io.Writer) { printNodeAnswer(out, nodeAnswer) }),
		"cost":                    func(out io.Writer) error { return tabulate(out, costs, costGroups["nodepool"]) },
		"release inspect":         func(out io.Writer) error { return printRelease(out, release, "table") },
		"release inspect -o name": func(out io.Writer) error { return printRelease(out, release, "name") },
		"release inspect -o json": func(out io.Writer) error { return printRelease(out, release, "json") },
		"release inspect -o yaml": func(out io.Writer) error { return printRelease(out, release, "yaml") },
		"hosted-cluster create":   func(out io.Writer) error { return (&hostedClusterOptions{}).print(out, hostedCluster) },
		"hosted-cluster -o name":  func(out io.Writer) error { return (&hostedClusterOptions{output: "name"}).print(out, hostedCluster) },
		"hosted-cluster -o yaml": func(out io.Writer) error {
			return (&hostedClusterOptions{output: "yaml", shared: true}).print(out, hostedCluster)
		},
		"catalog import":        func(out io.Writer) error { return printCatalog(out, catalog, true) },
		"catalog diff":          program("catalog", "diff", empty, one),
		"catalog diff, removed": program("catalog", "diff", one, empty),
		"catalog diff, changed": program("catalog", "diff", one, offers),
		"catalog check":         program("catalog", "check", "-f", misnamed),
		"templates render":      program("templates", "render", "-f", templates),
		"an error":              program("templates", "render", "-f", hostile),
		"an unknown command":    program(hostile),
		"a writer that nobody cleans": func(out io.Writer) error {
			_, err := fmt.Fprint(&message.Writer{To: out}, strings.ReplaceAll(hostile, "\nFORGED", ""))
			return err
		},
	} {
		t.Run("When `autonode "+name+"` shows what a stranger wrote, it should do nothing to a terminal", func(t *testing.T) {
			g := NewWithT(t)
			var out bytes.Buffer
			g.Expect(show(&out)).To(Succeed())
			g.Expect(out.String()).To(ContainSubstring("owned"), "it shows it")
			g.Expect(out.String()).To(Equal(message.Visible(out.String())))
			for line := range strings.Lines(out.String()) {
				g.Expect(line).NotTo(HavePrefix("FORGED"))
			}
		})
	}
}

// TestHostileEncoding is for scripts: they get what the cluster has.
func TestHostileEncoding(t *testing.T) {
	for _, format := range []string{"json", "yaml"} {
		t.Run("When a script reads "+format+", it should get what a stranger wrote", func(t *testing.T) {
			g := NewWithT(t)
			for _, text := range []string{hostile, "plain: text", "größer \u202e"} {
				var out bytes.Buffer
				g.Expect(encode(&message.Writer{To: &out}, format, map[string]any{text: []string{text}})).To(Succeed())
				var got map[string][]string
				g.Expect(yaml.UnmarshalStrict(out.Bytes(), &got)).To(Succeed())
				g.Expect(got).To(Equal(map[string][]string{text: {text}}))
				g.Expect(out.String()).To(Equal(message.Visible(out.String())))
			}
		})
	}
}
