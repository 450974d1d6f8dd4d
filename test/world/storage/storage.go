// SPDX-License-Identifier: Apache-2.0

// Package storage is a CSI driver of zonal volumes for a guest of the world: what Kubernetes and Karpenter see of one. It has the
// parts of a real driver that write API objects, and no volumes: kwok's pods mount nothing.
//
//   - Its node plugin registers with the kubelet, which labels the Node with the driver's own topology key and lists the driver in
//     the CSINode, with the number of volumes that the node can attach.
//   - Its provisioner makes the PersistentVolume of a claim once the scheduler has selected a node, in that node's zone, and deletes
//     it when the claim has gone.
//
// The driver needs no attacher (attachRequired is false), so there are no VolumeAttachments.
package storage

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	autonodemanager "github.com/autonode-io/autonode/internal/manager"
)

const (
	// DriverName is the CSIDriver's, and the provisioner of the StorageClass.
	DriverName = "zonal.csi.kwok.x-k8s.io"
	// TopologyKey is a real driver's, so that whoever schedules has to know it.
	TopologyKey = "topology.ebs.csi.aws.com/zone"
	// ClassName is the StorageClass's. A claim of it is bound when the scheduler has selected a node.
	ClassName = "zonal"
	// MaxVolumes is the number of volumes that a node can attach.
	MaxVolumes = 20
)

// Driver is an installed driver that runs.
type Driver struct {
	guest  client.Client
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed
}

// Install installs the driver in a guest, as an administrator of it, and runs it until Uninstall. ctx only bounds the start.
func Install(ctx context.Context, guest *rest.Config, logger logr.Logger) (*Driver, error) {
	config := rest.CopyConfig(guest)
	config.QPS = -1
	config.UserAgent = "autonode-world-storage"
	manager, err := autonodemanager.New(config, ctrl.Options{
		Scheme: clientgoscheme.Scheme, Logger: logger, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, fmt.Errorf("building a manager: %w", err)
	}
	skipNameValidation := true // a process may have a driver in each guest
	options := ctrlcontroller.Options{SkipNameValidation: &skipNameValidation}
	for _, setup := range []func(ctrl.Manager, ctrlcontroller.Options) error{
		(&nodePlugin{manager.GetClient()}).setup,
		(&provisioner{manager.GetClient()}).setup,
		(&deleter{manager.GetClient()}).setup,
	} {
		if err := setup(manager, options); err != nil {
			return nil, fmt.Errorf("setting up a controller: %w", err)
		}
	}
	// The cache would have to know them first.
	direct, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the guest: %w", err)
	}
	for _, object := range objects() {
		if err := direct.Create(ctx, object); err != nil {
			return nil, fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	running, cancel := context.WithCancel(context.Background())
	d := &Driver{guest: direct, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.err = manager.Start(running)
	}()
	return d, nil
}

// Uninstall stops the driver and removes its objects. Volumes and what the kubelets registered are left as they are.
func (d *Driver) Uninstall(ctx context.Context) error {
	d.cancel()
	<-d.done
	errs := []error{d.err}
	for _, object := range objects() {
		if err := d.guest.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("deleting %T %s: %w", object, object.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

func objects() []client.Object {
	attach, reclaim, binding := false, corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer
	return []client.Object{
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: DriverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: &attach}},
		&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: ClassName}, Provisioner: DriverName, ReclaimPolicy: &reclaim, VolumeBindingMode: &binding,
		},
	}
}
