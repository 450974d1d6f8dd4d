// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/printer"
)

const (
	// PauseAnnotation is on a HostedCluster while the command pauses Karpenter: a pause.
	PauseAnnotation = "autonode.io/adoption-pause"
	// pauseFor is how long Karpenter stays paused at most, if the command is interrupted.
	pauseFor = 5 * time.Minute
	// margin is the end of a pause in which the command writes nothing any more: clocks differ.
	margin = time.Minute
)

// pause is one of Karpenter's: whose it is, its end in spec.pausedUntil, and the value before.
type pause struct {
	MachineDeployment string  `json:"machineDeployment"`
	Until             string  `json:"until"`
	Before            *string `json:"before,omitempty"`
}

func pauseOf(hosted *v1beta1.HostedCluster) (p pause, ok bool) {
	return p, json.Unmarshal([]byte(hosted.Annotations[PauseAnnotation]), &p) == nil
}

// mayPause returns an error while another run of the command may pause Karpenter.
func (a *adoption) mayPause() error {
	p, ok := pauseOf(a.hostedCluster)
	if until, err := time.Parse(time.RFC3339, p.Until); ok && err == nil && p.MachineDeployment != a.key.Name && time.Now().Before(until) {
		return fmt.Errorf("the adoption of MachineDeployment %s pauses Karpenter until %s; wait for it, or continue it first", p.MachineDeployment,
			p.Until)
	}
	return nil
}

// outlasts reports whether a pause lasts longer than the command's own.
func outlasts(until string) bool {
	end, err := time.Parse(time.RFC3339, until)
	return until == "true" || err == nil && time.Until(end) > pauseFor
}

// pauseKarpenter pauses Karpenter, and waits until none of its pods is left.
func (a *adoption) pauseKarpenter(ctx context.Context, _ []*member) error {
	hosted := a.hostedCluster
	err := change(ctx, a.management, hosted, func() error {
		if err := a.allowed(); err != nil {
			return err
		}
		p, own := pauseOf(hosted)
		if !own {
			if outlasts(ptr.Deref(hosted.Spec.PausedUntil, "")) {
				return nil
			}
			p.Before = hosted.Spec.PausedUntil
		}
		p.MachineDeployment, p.Until = a.key.Name, time.Now().Add(pauseFor).UTC().Format(time.RFC3339)
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		hosted.Spec.PausedUntil = &p.Until
		metav1.SetMetaDataAnnotation(&hosted.ObjectMeta, PauseAnnotation, string(text))
		return nil
	})
	if err != nil {
		return err
	}
	printer.Printf(a.out, "%s  Karpenter is paused until %s\n", time.Now().Format(time.TimeOnly), *hosted.Spec.PausedUntil)
	key := client.ObjectKey{Namespace: hosted.ControlPlaneNamespace(), Name: hosted.Names().Karpenter}
	return await(ctx, "Karpenter's pods in namespace "+key.Namespace+" to end", func(ctx context.Context) (bool, error) {
		running, pods := &appsv1.Deployment{}, &corev1.PodList{}
		if err := a.management.Get(ctx, key, running); err != nil {
			return false, fmt.Errorf("reading Karpenter's Deployment: %w", err)
		}
		selector, err := metav1.LabelSelectorAsSelector(running.Spec.Selector)
		if err != nil || ptr.Deref(running.Spec.Replicas, 1) > 0 {
			return false, err
		}
		err = a.management.List(ctx, pods, client.InNamespace(key.Namespace), client.MatchingLabelsSelector{Selector: selector})
		return len(pods.Items) == 0, err
	})
}

// whilePaused returns a context that ends before Karpenter's pause does.
func (a *adoption) whilePaused(ctx context.Context) (context.Context, context.CancelFunc) {
	until, err := time.Parse(time.RFC3339, ptr.Deref(a.hostedCluster.Spec.PausedUntil, ""))
	if err != nil {
		until = time.Now().Add(pauseFor) // it is paused for ever
	}
	return context.WithDeadline(ctx, until.Add(-margin))
}

// resumeKarpenter restores spec.pausedUntil, unless someone else has changed it since.
func (a *adoption) resumeKarpenter(ctx context.Context, _ []*member) error {
	return change(ctx, a.management, a.hostedCluster, func() error {
		if p, paused := pauseOf(a.hostedCluster); paused && ptr.Deref(a.hostedCluster.Spec.PausedUntil, "") == p.Until {
			a.hostedCluster.Spec.PausedUntil = p.Before
		}
		delete(a.hostedCluster.Annotations, PauseAnnotation)
		return nil
	})
}
