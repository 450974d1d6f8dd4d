// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	goruntime "runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// heartbeatPeriod is the kubelet's: the controller manager takes a node for lost after 50 seconds.
const heartbeatPeriod = 10 * time.Second

// keepAlive keeps the node alive in the eyes of the controller manager until the context ends.
func (a *Agent) keepAlive(ctx context.Context) {
	ticker := time.NewTicker(heartbeatPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := a.heartbeat(ctx); err != nil && ctx.Err() == nil {
			a.Logger.Error(err, "Reporting the node")
		}
	}
}

// heartbeat reports the Node ready, and creates it where it isn't there.
func (a *Agent) heartbeat(ctx context.Context) error {
	ready := map[string]any{
		"type": corev1.NodeReady, "status": corev1.ConditionTrue, "lastHeartbeatTime": metav1.Now(),
		"reason": "KubeletReady", "message": "the node agent runs pods as processes of this machine",
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{ready}}})
	if err != nil {
		return fmt.Errorf("encoding the status of node %s: %w", a.NodeName, err)
	}
	_, err = a.client.CoreV1().Nodes().PatchStatus(ctx, a.NodeName, patch)
	if apierrors.IsNotFound(err) {
		err = a.register(ctx)
	}
	if err != nil {
		return fmt.Errorf("reporting node %s: %w", a.NodeName, err)
	}
	return nil
}

func (a *Agent) register(ctx context.Context) error {
	version, err := a.client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	// Nothing enforces what pods request: the node has room for all of a world's.
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(64, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(256<<30, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(250, resource.DecimalSI),
	}
	now := metav1.Now()
	_, err = a.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: a.NodeName, Labels: map[string]string{
			corev1.LabelHostname: a.NodeName, corev1.LabelOSStable: goruntime.GOOS, corev1.LabelArchStable: goruntime.GOARCH,
		}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			// No host name: the API server would prefer it, and it does not resolve.
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: loopback}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: a.logPort}},
			NodeInfo: corev1.NodeSystemInfo{
				OSImage: "AutoNode world", OperatingSystem: goruntime.GOOS, Architecture: goruntime.GOARCH,
				ContainerRuntimeVersion: "process://1.0.0", KubeletVersion: version.GitVersion,
			},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now,
				Reason: "KubeletReady", Message: "the node agent runs pods as processes of this machine",
			}},
		},
	}, metav1.CreateOptions{})
	return err
}
