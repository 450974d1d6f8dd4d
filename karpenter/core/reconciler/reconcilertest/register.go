// SPDX-License-Identifier: Apache-2.0

// Package reconcilertest gives tests the reconcilers of Karpenter core's controllers, wrapped or alone.
package reconcilertest

import (
	"net/http"
	"testing"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodemanager "github.com/autonode-io/autonode/internal/manager"
)

// Provider is a cloud provider with AutoNode's node class. A test adds the calls that it answers.
type Provider struct {
	karpcloudprovider.CloudProvider
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (Provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// capturing is a manager that starts nothing.
type capturing struct {
	manager.Manager
	guest client.Client
	added reconcile.Reconciler
}

// Add implements manager.Manager.
func (c *capturing) Add(runnable manager.Runnable) error {
	c.added, _ = runnable.(reconcile.Reconciler)
	return nil
}

// GetClient implements manager.Manager.
func (c *capturing) GetClient() client.Client { return c.guest }

// Register registers a controller with a manager that starts nothing, and returns its reconciler. The manager reads from guest.
func Register(t *testing.T, core controller.Controller, guest client.Client) reconcile.Reconciler {
	t.Helper()
	g := gomega.NewWithT(t)
	mgr, err := autonodemanager.New(&rest.Config{Host: "127.0.0.1:1"}, ctrl.Options{
		Scheme: guest.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return guest.RESTMapper(), nil },
	})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	m := &capturing{Manager: mgr, guest: guest}
	g.Expect(core.Register(options.ToContext(t.Context(), &options.Options{CPURequests: 1000}), m)).To(gomega.Succeed())
	g.Expect(m.added).NotTo(gomega.BeNil(), "the manager got a reconciler")
	return m.added
}
