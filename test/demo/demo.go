// SPDX-License-Identifier: Apache-2.0

// Package demo plays AutoNode's main scenarios in a running world, as a person would show them: with the commands that a
// person would type, what they print, and what is waited for. It fails if anything that it shows did not happen.
package demo

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/disruption"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
	"github.com/autonode-io/autonode/test/world/progress"
)

//go:embed manifests
var manifests embed.FS

// timeout is the timeout of every wait. The demo shows how long each step took.
const timeout = 4 * time.Minute

// Config of Run.
type Config struct {
	// Dir is the folder of a world that is ready.
	Dir string
	// Guest is the guest cluster that the demo plays in. AutoNode must be off in it.
	Guest string
	// Initial and Upgraded are release images; Upgraded gives nodes the version UpgradedKubernetes.
	Initial, Upgraded  string
	UpgradedKubernetes string
	// Kubectl is the path of kubectl.
	Kubectl string
	// Began is the start that the demo's durations count from.
	Began time.Time
	// Printer shows the demo.
	Printer *progress.Printer
}

type demo struct {
	Config
	*narrator
	managementConfig  *rest.Config
	management, guest client.WithWatch
	templates         []v1alpha1.TemplateStatus
}

// Run plays the demo and returns an error that names the first thing that did not happen, after showing what a person
// would look at.
func Run(ctx context.Context, cfg Config) error {
	// kubectl runs in a folder of its own, so what it is told has to be absolute.
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return fmt.Errorf("finding the world's folder: %w", err)
	}
	cfg.Dir = dir
	d := &demo{Config: cfg, narrator: &narrator{
		printer: cfg.Printer, kubectl: cfg.Kubectl, dir: cfg.Dir + "/demo",
		kubeconfig: localworld.KubeconfigPath(cfg.Dir, localworld.Management) + ":" + localworld.KubeconfigPath(cfg.Dir, cfg.Guest),
	}}
	if d.managementConfig, d.management, err = connect(localworld.KubeconfigPath(cfg.Dir, localworld.Management)); err != nil {
		return err
	}
	if _, d.guest, err = connect(localworld.KubeconfigPath(cfg.Dir, cfg.Guest)); err != nil {
		return err
	}
	if err := d.unpack(); err != nil {
		return err
	}
	for _, act := range []func(context.Context) error{d.enable, d.provision, d.replace, d.upgrade, d.scaleDown} {
		if err := act(ctx); err != nil {
			if ctx.Err() == nil {
				d.explain(ctx)
			}
			return err
		}
	}
	cfg.Printer.Println("\nEnd after " + progress.Duration(time.Since(cfg.Began)))
	return nil
}

func connect(kubeconfig string) (*rest.Config, client.WithWatch, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	connected, err := localworld.NewClient(config, apiextensionsv1.AddToScheme)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting with %s: %w", kubeconfig, err)
	}
	return config, connected, nil
}

// enable is the platform team's part.
func (d *demo) enable(ctx context.Context) error {
	d.heading("A platform team turns AutoNode on")
	if err := d.run(ctx, "--context", localworld.Management, "-n", hosting.Namespace, "patch", "hostedcluster", d.Guest,
		"--type", "merge", "--patch-file", "autonode.yaml"); err != nil {
		return err
	}
	if _, err := d.await(ctx, "AutoNode starts", timeout,
		d.conditionIs("payload resolved", v1beta1.ReleaseResolved, metav1.ConditionTrue),
		expectation{"CRDs established in " + d.Guest, d.crdsEstablished},
		expectation{"Karpenter rolled out", d.rolledOut(d.Initial)},
		d.conditionIs("AutoNodeEnabled=True", v1beta1.AutoNodeEnabled, metav1.ConditionTrue),
		expectation{"default node class ready", d.nodeClassReady},
		d.conditionIs("Ready=True", v1beta1.Ready, metav1.ConditionTrue), // the column AUTONODE shows Enabled from here on
	); err != nil {
		return err
	}
	if err := d.showHosted(ctx); err != nil {
		return err
	}
	d.say("First table after " + progress.Duration(time.Since(d.Began)))
	return d.run(ctx, "--context", d.Guest, "get", "clusterapinodeclasses")
}

// provision is the cluster admin's part.
func (d *demo) provision(ctx context.Context) error {
	d.heading("A cluster admin asks for nodes")
	if err := d.run(ctx, "--context", d.Guest, "apply", "-f", "nodepool.yaml", "-f", "web.yaml"); err != nil {
		return err
	}
	var replicas int32
	elapsed, err := d.await(ctx, "pods become nodes", timeout, expectation{"every pod runs", func(ctx context.Context) (bool, string, error) {
		deployment := &appsv1.Deployment{}
		err := d.guest.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "web"}, deployment)
		if err != nil {
			return false, "", err
		}
		replicas = *deployment.Spec.Replicas
		return deployment.Status.AvailableReplicas == replicas, fmt.Sprintf("%d of %d pods run", deployment.Status.AvailableReplicas, replicas), nil
	}})
	if err != nil {
		return err
	}
	fleet, err := d.showFleet(ctx)
	if err != nil {
		return err
	}
	const podCPU = 520 // manifests/web.yaml
	alone := cheapestAlone(int(replicas), podCPU, d.templates)
	d.say(fmt.Sprintf("%d of %d pods run after %s, for $%.3f/h; with one node per pod they would cost $%.3f/h",
		replicas, replicas, progress.Duration(elapsed), fleet.price, alone))
	if err := d.run(ctx, "--context", d.Guest, "get", "nodepools,nodeclaims"); err != nil {
		return err
	}
	return d.run(ctx, "--context", localworld.Management, "-n", hosting.ControlPlaneNamespace(d.Guest), "get", "machines",
		"-L", karpv1.NodePoolLabelKey+","+corev1.LabelInstanceTypeStable+","+karpv1.CapacityTypeLabelKey)
}

// replace shows that the admin owns the disruption budget.
func (d *demo) replace(ctx context.Context) error {
	d.heading("The admin edits the NodePool: its nodes are replaced, one at a time, within its budget")
	before, err := d.nodes(ctx)
	if err != nil {
		return err
	}
	disrupted, err := disruption.Watch(ctx, d.guest)
	if err != nil {
		return err
	}
	if err := d.run(ctx, "--context", d.Guest, "patch", "nodepool", "general", "--type", "merge", "-p",
		`{"spec":{"template":{"metadata":{"labels":{"team":"web"}}}}}`); err != nil {
		return err
	}
	if err := d.awaitReplaced(ctx, before, disrupted, func(node *corev1.Node) bool { return node.Labels["team"] == "web" }); err != nil {
		return err
	}
	_, err = d.showFleet(ctx)
	return err
}

// upgrade shows that the payload rolls Karpenter, then the nodes, never ahead of the control plane.
func (d *demo) upgrade(ctx context.Context) error {
	d.heading("The platform team moves the cluster to a new payload: Karpenter first, nodes once the control plane allows")
	before, err := d.nodes(ctx)
	if err != nil {
		return err
	}
	disrupted, err := disruption.Watch(ctx, d.guest)
	if err != nil {
		return err
	}
	early, err := disruption.Watch(ctx, d.guest)
	if err != nil {
		return err
	}
	if err := d.run(ctx, "--context", localworld.Management, "-n", hosting.Namespace, "patch", "hostedcluster", d.Guest,
		"--type", "merge", "-p", fmt.Sprintf(`{"spec":{"release":{"image":%q}}}`, d.Upgraded)); err != nil {
		return err
	}
	if _, err := d.await(ctx, "Karpenter rolls", timeout,
		expectation{"Karpenter of the new payload", d.rolledOut(d.Upgraded)},
		d.conditionIs("nodes wait for the control plane", v1beta1.NodesUpToDate, metav1.ConditionFalse),
	); err != nil {
		return err
	}
	if err := d.showHosted(ctx); err != nil {
		return err
	}
	if _, nodes := early(); len(nodes) > 0 {
		return fmt.Errorf("nodes were disrupted ahead of the control plane: %v", nodes)
	}
	d.say(fmt.Sprintf("$ autonode-dev world upgrade %s --version %s", d.Guest, d.UpgradedKubernetes))
	if err := localworld.UpgradeControlPlane(ctx, d.managementConfig, d.Guest, d.UpgradedKubernetes); err != nil {
		return fmt.Errorf("upgrading the control plane of %s: %w", d.Guest, err)
	}
	if err := d.awaitReplaced(ctx, before, disrupted, func(node *corev1.Node) bool {
		return node.Status.NodeInfo.KubeletVersion == d.UpgradedKubernetes
	}); err != nil {
		return err
	}
	if _, err := d.await(ctx, "the history is complete", timeout,
		d.conditionIs("NodesUpToDate=True", v1beta1.NodesUpToDate, metav1.ConditionTrue),
		expectation{"history reports Completed", d.completed},
	); err != nil {
		return err
	}
	if _, err := d.showFleet(ctx); err != nil {
		return err
	}
	return d.showHosted(ctx)
}

// scaleDown shows that nodes are removed when no pod needs them.
func (d *demo) scaleDown(ctx context.Context) error {
	d.heading("The workload goes, and its nodes with it")
	if err := d.run(ctx, "--context", d.Guest, "scale", "deployment", "web", "--replicas=0"); err != nil {
		return err
	}
	if _, err := d.await(ctx, "nodes go", timeout,
		expectation{"no node and no Machine left", d.nothingLeft},
		expectation{"the HostedCluster counts none", d.countsNone},
	); err != nil {
		return err
	}
	return d.showHosted(ctx)
}

func (d *demo) showHosted(ctx context.Context) error {
	return d.run(ctx, "--context", localworld.Management, "get", "hostedclusters,controlplanecomponents", "-A")
}

func (d *demo) showFleet(ctx context.Context) (fleet, error) {
	nodes, err := d.nodes(ctx)
	if err != nil {
		return fleet{}, err
	}
	pods := &corev1.PodList{}
	if err := d.guest.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return fleet{}, fmt.Errorf("listing pods: %w", err)
	}
	class := &v1alpha1.ClusterAPINodeClass{}
	if err := d.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class); err != nil {
		return fleet{}, fmt.Errorf("reading the node class: %w", err)
	}
	d.templates = class.Status.Templates
	f, err := newFleet(nodes, pods.Items, d.templates)
	if err != nil {
		return fleet{}, err
	}
	d.say(f.String())
	return f, nil
}

// nodes lists Karpenter's nodes by name.
func (d *demo) nodes(ctx context.Context) ([]corev1.Node, error) {
	list := &corev1.NodeList{}
	if err := d.guest.List(ctx, list, client.HasLabels{karpv1.NodePoolLabelKey}); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

func names(nodes []corev1.Node) []string {
	out := make([]string, 0, len(nodes))
	for _, node := range nodes {
		out = append(out, node.Name)
	}
	return out
}

// oneAtATime returns what is wrong with "never more than one at a time": most nodes were disrupted at once, and ever lists all that were.
func oneAtATime(replaced []string, most int, ever []string) error {
	switch {
	case len(replaced) == 0:
		return errors.New("there was no node to replace")
	case most > 1:
		return fmt.Errorf("%d nodes were disrupted at once, and the budget is 1", most)
	}
	for _, node := range replaced {
		if !slices.Contains(ever, node) {
			return fmt.Errorf("node %s went without being disrupted; those that were: %v", node, ever)
		}
	}
	return nil
}

// awaitReplaced waits until all nodes of before have gone and every node is as wanted. It fails when more than one node is
// disrupted at once, which is the NodePool's budget, when disrupted reports about fewer nodes that they were, and when there is none.
func (d *demo) awaitReplaced(ctx context.Context, before []corev1.Node, disrupted func() (most int, ever []string), wanted func(*corev1.Node) bool) error {
	var expectations []expectation
	for left := len(before) - 1; left >= 0; left-- {
		expectations = append(expectations, expectation{fmt.Sprintf("%d of %d nodes replaced", len(before)-left, len(before)),
			func(ctx context.Context) (bool, string, error) {
				nodes, err := d.nodes(ctx)
				if err != nil {
					return false, "", err
				}
				old, asWanted := 0, 0
				for _, node := range nodes {
					if slices.ContainsFunc(before, func(b corev1.Node) bool { return b.UID == node.UID }) {
						old++
					}
					if wanted(&node) {
						asWanted++
					}
				}
				return old <= left && asWanted >= len(nodes)-old, fmt.Sprintf("%d old nodes, %d new ones", old, asWanted), nil
			}})
	}
	elapsed, err := d.await(ctx, "nodes are replaced", 2*timeout, expectations...)
	if err != nil {
		return err
	}
	most, ever := disrupted()
	if err := oneAtATime(names(before), most, ever); err != nil {
		return err
	}
	d.say(fmt.Sprintf("%d nodes replaced in %s, never more than one at a time", len(before), progress.Duration(elapsed)))
	return nil
}

func (d *demo) hostedCluster(ctx context.Context) (*v1beta1.HostedCluster, error) {
	hosted := &v1beta1.HostedCluster{}
	if err := d.management.Get(ctx, client.ObjectKey{Namespace: hosting.Namespace, Name: d.Guest}, hosted); err != nil {
		return nil, fmt.Errorf("reading HostedCluster %s: %w", d.Guest, err)
	}
	return hosted, nil
}

// explain shows what a person would look at after a failure.
func (d *demo) explain(ctx context.Context) {
	d.heading("An expectation was not met. Current state:")
	for _, args := range [][]string{
		{"--context", localworld.Management, "-n", hosting.Namespace, "describe", "hostedcluster", d.Guest},
		{"--context", localworld.Management, "-n", hosting.ControlPlaneNamespace(d.Guest), "get", "controlplanecomponents,pods,machines", "-o", "wide"},
		{"--context", localworld.Management, "-n", hosting.ControlPlaneNamespace(d.Guest), "get", "events", "--sort-by=.lastTimestamp"},
		{"--context", d.Guest, "get", "clusterapinodeclasses,nodepools,nodeclaims,nodes", "-o", "wide"},
		{"--context", d.Guest, "get", "events", "--sort-by=.lastTimestamp"},
	} {
		if err := d.run(ctx, args...); err != nil {
			d.say(err.Error())
		}
	}
	d.say("Logs are in " + localworld.LogDir(d.Dir))
}
