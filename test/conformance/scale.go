// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/test/world/process"
	"github.com/autonode-io/autonode/test/world/progress"
)

// scaleTimeout bounds one measurement.
const scaleTimeout = 15 * time.Minute

// ScaleConfig of Scale.
type ScaleConfig struct {
	// Sizes are how many pods are asked for at once, each of which needs a node of its own.
	Sizes []int
	// Karpenter is the path of our provider's program.
	Karpenter string
	Out       io.Writer
}

// Scale measures how long it takes until pods run that need a node each, with our provider and with Karpenter's kwok provider, in
// the same world, and prints the ratio. Karpenter's provider creates Nodes and nothing else, so the ratio is what Cluster API
// costs. The providers take turns, because what one does slows the other down.
func Scale(ctx context.Context, cfg ScaleConfig) error {
	printer := progress.New(cfg.Out)
	task := printer.Task("Building Karpenter's kwok provider", "")
	bin, err := build(ctx, kwokProgram)
	if err != nil {
		task.Fail()
		return err
	}
	task.End("built in " + progress.Duration(task.Elapsed()))
	r := &run{
		cfg: Config{Karpenter: cfg.Karpenter, Guests: 1, Providers: []string{ClusterAPI, Kwok}, Out: cfg.Out},
		bin: bin, printer: printer,
	}
	return r.inWorld(ctx, func(ctx context.Context, s setup) error {
		subjects := map[string]*subject{}
		for _, name := range r.cfg.Providers {
			p, err := r.provider(name, s)
			if err != nil {
				return err
			}
			defer p.stop()
			if subjects[name], err = newSubject(ctx, s, name, p); err != nil {
				return err
			}
		}
		took := map[string][]time.Duration{}
		for _, size := range cfg.Sizes {
			for _, name := range r.cfg.Providers {
				elapsed, err := subjects[name].measure(ctx, size)
				if err != nil {
					return fmt.Errorf("%s, %d pods: %w", name, size, err)
				}
				took[name] = append(took[name], elapsed)
				r.printer.Println(fmt.Sprintf("%-10s  %4d pods run after %s", name, size, elapsed.Round(100*time.Millisecond)))
			}
		}
		return printScale(cfg.Out, cfg.Sizes, took)
	})
}

func printScale(out io.Writer, sizes []int, took map[string][]time.Duration) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "pods\t%s\t%s\tratio\t\n", ClusterAPI, Kwok)
	for i, size := range sizes {
		ours, measure := took[ClusterAPI][i].Seconds(), took[Kwok][i].Seconds()
		fmt.Fprintf(table, "%d\t%.1f s\t%.1f s\t%.2f\t\n", size, ours, measure, ours/measure)
	}
	return table.Flush()
}

// subject is a guest with a Karpenter and a NodePool.
type subject struct {
	name  string
	guest client.Client
}

func newSubject(ctx context.Context, s setup, name string, p provider) (*subject, error) {
	guest := name + "-1" // as run.guests names it
	if _, err := s.start(ctx, name, p, guest); err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(s.world.Guest(guest).RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", guest, err)
	}
	for _, document := range p.defaults() {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("decoding the defaults of %s: %w", name, err)
		}
		if err := c.Create(ctx, object); err != nil {
			return nil, fmt.Errorf("creating %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return &subject{name: name, guest: c}, nil
}

// measure asks for pods, waits until they run, and clears up. It returns how long they took.
func (s *subject) measure(ctx context.Context, size int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	deployment := apart(size)
	key := client.ObjectKeyFromObject(deployment)
	started := time.Now()
	if err := s.guest.Create(ctx, deployment); err != nil {
		return 0, fmt.Errorf("asking for pods: %w", err)
	}
	if err := process.Poll(ctx, "pods to run", nil, nil, func(ctx context.Context) error {
		current := &appsv1.Deployment{}
		if err := s.guest.Get(ctx, key, current); err != nil {
			return err
		}
		if available := int(current.Status.AvailableReplicas); available < size {
			return fmt.Errorf("%d of %d run", available, size)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	elapsed := time.Since(started)
	return elapsed, s.clear(ctx, deployment)
}

// clear removes the pods and their nodes, so that the next measurement starts from nothing.
func (s *subject) clear(ctx context.Context, deployment *appsv1.Deployment) error {
	if err := s.guest.Delete(ctx, deployment, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		return fmt.Errorf("removing the pods: %w", err)
	}
	claims := &unstructured.Unstructured{}
	claims.SetGroupVersionKind(schema.GroupVersionKind{Group: apis.Group, Version: "v1", Kind: "NodeClaim"})
	if err := s.guest.DeleteAllOf(ctx, claims); err != nil {
		return fmt.Errorf("removing the nodes: %w", err)
	}
	return process.Poll(ctx, "nodes to go", nil, nil, func(ctx context.Context) error {
		nodes := &metav1.PartialObjectMetadataList{}
		nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		if err := s.guest.List(ctx, nodes); err != nil {
			return err
		}
		if len(nodes.Items) > 0 {
			return fmt.Errorf("%d are left", len(nodes.Items))
		}
		return nil
	})
}

// apart is a Deployment whose pods don't share a node.
func apart(size int) *appsv1.Deployment {
	labels := map[string]string{"app": "apart"}
	replicas := int32(size)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "apart"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64),
					Containers:                    []corev1.Container{{Name: "web", Image: "registry.example/web:1"}},
					Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
							LabelSelector: &metav1.LabelSelector{MatchLabels: labels}, TopologyKey: corev1.LabelHostname,
						}},
					}},
				},
			},
		},
	}
}
