// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/port"
	"github.com/autonode-io/autonode/test/world/process"
)

// The providers that the suite can run against.
const (
	ClusterAPI = "clusterapi" // AutoNode's, which the operator runs
	Bare       = "bare"       // AutoNode's, without the operator
	Kwok       = "kwok"       // Karpenter's own, the measure
)

// MachineDeployment is Cluster API alone, which Scale measures beside them.
const MachineDeployment = "machinedeployment"

// featureGates are on for all providers, as in Karpenter's own continuous integration. The TerminateFirst specs switch on
// theirs by Karpenter's Deployment, which no guest has.
var featureGates = []string{"CapacityBuffer", "NodeRepair", "StaticCapacity", "TerminateFirstDrift", "TerminateFirstRepair"}

// gatesVariable is the environment variable that Karpenter reads its feature gates from.
const gatesVariable = "FEATURE_GATES"

// gatesValue is the variable's value with all featureGates on.
func gatesValue() string { return strings.Join(featureGates, "=true,") + "=true" }

const karpenterTimeout = time.Minute

// provider is a Karpenter that launches a guest's nodes.
type provider interface {
	// start starts Karpenter for a guest, and returns when it is ready. c is the guest's administrator.
	start(ctx context.Context, s setup, guest *controlplane.Cluster, c client.Client) (runner, error)
	// defaults are the node class and the NodePool of the suites, in YAML.
	defaults() [][]byte
	// small is the name of an instance type with two CPUs.
	small() string
	// suiteArgs are the suite's arguments for the provider.
	suiteArgs(s spec) []string
	// accompany runs what a spec needs beside it, until stop is called.
	accompany(ctx context.Context, s spec, guest *controlplane.Cluster) (stop func(), err error)
	// leftovers returns the names of the provider's objects that remain after all specs have cleaned up.
	leftovers(ctx context.Context, guest string) ([]string, error)
	// stop stops what start started beside Karpenter.
	stop()
}

// runner is a guest with a Karpenter.
type runner struct {
	provider   string
	guest      string
	kubeconfig string
	// profiles is the address of Karpenter's profiles.
	profiles string
}

// setup prepares guests for the suite.
type setup struct {
	world     *localworld.World
	ports     *port.Claims
	processes *process.Supervisor
	// definitions are CustomResourceDefinitions for every guest and provider.
	definitions []*apiextensionsv1.CustomResourceDefinition
}

// start prepares a guest for the suite and starts a provider's Karpenter for it.
func (s setup) start(ctx context.Context, p provider, guest string) (runner, error) {
	cluster := s.world.Guest(guest)
	scheme, err := newScheme()
	if err != nil {
		return runner{}, err
	}
	c, err := client.New(cluster.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return runner{}, fmt.Errorf("connecting to %s: %w", guest, err)
	}
	if err := crd.Install(ctx, c, s.definitions...); err != nil {
		return runner{}, fmt.Errorf("preparing %s: %w", guest, err)
	}
	on, err := p.start(ctx, s, cluster, c)
	if err != nil {
		return runner{}, fmt.Errorf("starting Karpenter for %s: %w", guest, err)
	}
	return on, nil
}

// showSettings creates what the suite looks for in a guest to learn Karpenter's settings. Karpenter runs elsewhere, so the
// Deployment has no replicas. A spec that changes a setting waits for a restart in vain and fails.
func showSettings(ctx context.Context, c client.Client, featureGates string) error {
	if err := c.Create(ctx, settingsDeployment(featureGates)); err != nil {
		return fmt.Errorf("creating a Deployment for the suite: %w", err)
	}
	return nil
}

func settingsDeployment(featureGates string) *appsv1.Deployment {
	labels := map[string]string{"app.kubernetes.io/name": "karpenter-settings"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "karpenter"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "controller", Image: "karpenter", Env: []corev1.EnvVar{{Name: gatesVariable, Value: featureGates}},
				}}},
			},
		},
	}
}

// run runs a Karpenter as a process of this machine, and returns when it is ready.
func (s setup) run(ctx context.Context, spec process.Spec, provider, guest string, c client.Client) (runner, error) {
	if err := showSettings(ctx, c, gatesValue()); err != nil {
		return runner{}, err
	}
	metrics, err := s.ports.Next()
	if err != nil {
		return runner{}, err
	}
	health, err := s.ports.Next()
	if err != nil {
		return runner{}, err
	}
	spec.Name = "karpenter-" + guest
	spec.Grace = 10 * time.Second
	spec.Env = append(spec.Env,
		fmt.Sprintf("METRICS_PORT=%d", metrics),
		fmt.Sprintf("HEALTH_PROBE_PORT=%d", health),
		gatesVariable+"="+gatesValue(),
		"LEADER_ELECTION_NAME=karpenter-leader-election",
		"LOG_LEVEL=info",
		"ENABLE_PROFILING=true",
	)
	karpenter, err := s.processes.Start(spec)
	if err != nil {
		return runner{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, karpenterTimeout)
	defer cancel()
	if err := karpenter.Wait(ctx, process.Answers(nil, fmt.Sprintf("http://127.0.0.1:%d/readyz", health))); err != nil {
		return runner{}, err
	}
	return runner{provider: provider, guest: guest, kubeconfig: s.world.Kubeconfig(guest), profiles: fmt.Sprintf("127.0.0.1:%d", metrics)}, nil
}

// drive runs a program in a guest beside a spec; stop ends it.
func (s setup) drive(program string, on runner) (stop func(), err error) {
	driver, err := s.processes.Start(process.Spec{
		Name: filepath.Base(program) + "-" + on.guest, Path: program, Env: []string{"KUBECONFIG=" + on.kubeconfig}, Grace: 5 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return driver.Stop, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building a scheme: %w", err)
		}
	}
	return scheme, nil
}

// writeFile writes a file for a child process.
func writeFile(dir, name string, data []byte) (string, error) {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return "", fmt.Errorf("writing %s: %w", name, err)
	}
	return path, nil
}
