// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The kubelet's rhythm, which the controller manager's node lifecycle expects.
const (
	leasePeriod    = 10 * time.Second
	leaseDuration  = 40 * time.Second
	statusPeriod   = 5 * time.Minute // conditions' heartbeat, when nothing else changed
	reasonReady    = "KubeletReady"
	reasonStopping = "NodeAgentStopped"
)

// capacity is what this machine has, with what the configuration says instead.
func capacity(override corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(machineMemory(), resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(100<<30, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(110, resource.DecimalSI),
	}
	maps.Copy(list, override)
	return list
}

// machineMemory is in bytes; where it can't be read, what fits a small machine.
func machineMemory() int64 {
	const guess = 8 << 30
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return guess
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == "MemTotal:" {
			if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return kib << 10
			}
		}
	}
	return guess
}

func kernelVersion() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(release))
}

// nodeObject is the Node as it is first registered.
func (a *Agent) nodeObject() *corev1.Node {
	labels := map[string]string{
		corev1.LabelHostname:   a.nodeName,
		corev1.LabelOSStable:   runtime.GOOS,
		corev1.LabelArchStable: runtime.GOARCH,
	}
	maps.Copy(labels, a.labels)
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.nodeName, Labels: labels}}
}

// registerNode creates the Node, or takes over one that is there, and reports it ready.
func (a *Agent) registerNode(ctx context.Context) error {
	nodes := a.client.CoreV1().Nodes()
	wanted := a.nodeObject()
	_, err := nodes.Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = a.relabel(ctx, wanted.Labels)
	}
	if err != nil {
		return fmt.Errorf("registering node %s: %w", a.nodeName, err)
	}
	if err := a.reportNode(ctx, true); err != nil {
		return err
	}
	return a.renewLease(ctx)
}

func (a *Agent) relabel(ctx context.Context, labels map[string]string) error {
	nodes := a.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, a.nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	before := maps.Clone(node.Labels)
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	maps.Copy(node.Labels, labels)
	if maps.Equal(before, node.Labels) {
		return nil
	}
	_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
	return err
}

// reportNode writes the Node's status: at once where it changed, else when a heartbeat is due.
func (a *Agent) reportNode(ctx context.Context, ready bool) error {
	nodes := a.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, a.nodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && ready {
		// Somebody deleted the Node of an agent that lives.
		if node, err = nodes.Create(ctx, a.nodeObject(), metav1.CreateOptions{}); err == nil {
			a.log.Info("Node registered again")
		}
	}
	if err != nil {
		return fmt.Errorf("reading node %s: %w", a.nodeName, err)
	}
	status := a.nodeStatus(node.Status, ready, time.Now())
	if equality.Semantic.DeepEqual(node.Status, status) {
		return nil
	}
	node.Status = status
	if _, err := nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the status of node %s: %w", a.nodeName, err)
	}
	return nil
}

func (a *Agent) nodeStatus(have corev1.NodeStatus, ready bool, now time.Time) corev1.NodeStatus {
	status := *have.DeepCopy()
	status.Capacity, status.Allocatable = a.allocatable, a.allocatable
	// No host name: the API server would prefer it, and nobody resolves it.
	status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: loopback}}
	status.DaemonEndpoints.KubeletEndpoint.Port = a.logPort
	status.NodeInfo = corev1.NodeSystemInfo{
		MachineID: a.nodeName, SystemUUID: a.nodeName, BootID: a.bootID,
		KernelVersion: kernelVersion(), OSImage: "AutoNode world", OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		ContainerRuntimeVersion: "process://1.0.0", KubeletVersion: a.version,
	}
	set := func(kind corev1.NodeConditionType, value corev1.ConditionStatus, reason, message string) {
		setNodeCondition(&status, corev1.NodeCondition{Type: kind, Status: value, Reason: reason, Message: message}, now)
	}
	set(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "the node agent doesn't measure memory")
	set(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "the node agent doesn't measure disks")
	set(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "the node agent doesn't count processes")
	if ready {
		set(corev1.NodeReady, corev1.ConditionTrue, reasonReady, "the node agent runs pods as processes of this machine")
	} else {
		set(corev1.NodeReady, corev1.ConditionFalse, reasonStopping, "the node agent was stopped")
	}
	return status
}

func setNodeCondition(status *corev1.NodeStatus, wanted corev1.NodeCondition, now time.Time) {
	stamp := metav1.NewTime(now).Rfc3339Copy()
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = stamp, stamp
	index := slices.IndexFunc(status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == wanted.Type })
	if index < 0 {
		status.Conditions = append(status.Conditions, wanted)
		return
	}
	have := status.Conditions[index]
	if have.Status == wanted.Status {
		wanted.LastTransitionTime = have.LastTransitionTime
		if have.Reason == wanted.Reason && have.Message == wanted.Message && now.Sub(have.LastHeartbeatTime.Time) < statusPeriod {
			return
		}
	}
	status.Conditions[index] = wanted
}

// heartbeat keeps the node alive in the eyes of the controller manager until the context ends.
func (a *Agent) heartbeat(ctx context.Context) {
	ticker := time.NewTicker(leasePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := a.renewLease(ctx); err != nil && ctx.Err() == nil {
			a.log.Error(err, "Renewing the node's lease")
		}
		if err := a.reportNode(ctx, true); err != nil && ctx.Err() == nil {
			a.log.Error(err, "Reporting the node")
		}
	}
}

func (a *Agent) renewLease(ctx context.Context) error {
	leases := a.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NowMicro()
	lease, err := leases.Get(ctx, a.nodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: a.nodeName, OwnerReferences: a.nodeOwner(ctx)},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &a.nodeName, LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)), RenewTime: &now,
			},
		}, metav1.CreateOptions{})
	} else if err == nil {
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &a.nodeName, &now
		lease.Spec.LeaseDurationSeconds = ptr.To(int32(leaseDuration / time.Second))
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renewing the lease of node %s: %w", a.nodeName, err)
	}
	return nil
}

// nodeOwner makes the lease go with the Node.
func (a *Agent) nodeOwner(ctx context.Context) []metav1.OwnerReference {
	node, err := a.client.CoreV1().Nodes().Get(ctx, a.nodeName, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
}
