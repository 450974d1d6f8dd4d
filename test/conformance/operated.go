// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/fault"
	"github.com/autonode-io/autonode/test/world/hosting"
)

// operated is AutoNode's provider as users run it: the platform team sets spec.autoNode of a HostedCluster, and the
// operator installs Karpenter from the release payload, with its ServiceAccount, its admission policies and two replicas.
// The suite is the guest's administrator.
type operated struct {
	*clusterAPI

	mu      sync.Mutex
	proxies []*fault.Proxy
}

var _ provider = (*operated)(nil)

func newOperated(management *controlplane.Cluster, dir string) (*operated, error) {
	base, err := newClusterAPI("", management, dir)
	if err != nil {
		return nil, err
	}
	return &operated{clusterAPI: base}, nil
}

// autoNode is spec.autoNode of the suite's HostedClusters, with the feature gates that aren't on by default.
func autoNode() *v1beta1.AutoNode {
	autoNode := hosting.AutoNode(hosting.TemplatePool, hosting.BootstrapTemplate)
	autoNode.ProvisionerConfig.Karpenter.FeatureGates = map[string]bool{"CapacityBuffer": true}
	return autoNode
}

func (p *operated) start(ctx context.Context, _ setup, guest *controlplane.Cluster, _ client.Client) (runner, error) {
	if err := p.createTemplates(ctx, guest.Name); err != nil {
		return runner{}, err
	}
	scheme, err := newScaleScheme()
	if err != nil {
		return runner{}, err
	}
	admin, err := client.New(guest.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return runner{}, fmt.Errorf("connecting to %s: %w", guest.Name, err)
	}
	if err := enable(ctx, p.client, admin, guest.Name, autoNode()); err != nil {
		return runner{}, err
	}
	// The suite cleans up objects of every kind of Karpenter's.
	installed := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := admin.List(ctx, installed); err != nil {
		return runner{}, fmt.Errorf("listing CRDs: %w", err)
	}
	definitions := make([]*apiextensionsv1.CustomResourceDefinition, len(installed.Items))
	for i := range installed.Items {
		definitions[i] = &installed.Items[i]
	}
	if err := crd.Install(ctx, admin, missing(definitions)...); err != nil {
		return runner{}, err
	}
	karpenter := &appsv1.Deployment{}
	if err := p.client.Get(ctx, client.ObjectKey{Namespace: p.namespace(guest.Name), Name: "karpenter"}, karpenter); err != nil {
		return runner{}, fmt.Errorf("reading Karpenter's Deployment: %w", err)
	}
	if err := showSettings(ctx, admin, gatesOf(karpenter)); err != nil {
		return runner{}, err
	}
	kubeconfig, err := p.suiteAccess(ctx, guest)
	if err != nil {
		return runner{}, err
	}
	return runner{provider: ClusterAPI, guest: guest.Name, kubeconfig: kubeconfig}, nil
}

// gatesOf returns the feature gates of a Deployment, which has one container.
func gatesOf(karpenter *appsv1.Deployment) string {
	for _, variable := range karpenter.Spec.Template.Spec.Containers[0].Env {
		if variable.Name == gatesVariable {
			return variable.Value
		}
	}
	return ""
}

// suiteAccess writes a kubeconfig of the guest's administrator. The suite requires that no node class exists, and the
// operator keeps the default one, so lists and watches go through a proxy that leaves it out.
func (p *operated) suiteAccess(ctx context.Context, guest *controlplane.Cluster) (string, error) {
	proxy, err := fault.Start(ctx, fault.Config{Upstream: guest.RESTConfig(), CA: guest.CA})
	if err != nil {
		return "", fmt.Errorf("starting a proxy for %s: %w", guest.Name, err)
	}
	proxy.Use(omitDefaultNodeClass)
	p.mu.Lock()
	p.proxies = append(p.proxies, proxy)
	p.mu.Unlock()
	kubeconfig, err := guest.KubeconfigAt(proxy.URL, "suite", "system:masters")
	if err != nil {
		return "", err
	}
	return writeFile(p.dir, guest.Name+".suite.kubeconfig", kubeconfig)
}

// nodeClassesPath is that of lists and watches of node classes.
var nodeClassesPath = "/apis/" + v1alpha1.GroupVersion.String() + "/clusterapinodeclasses"

// omitDefaultNodeClass adds a field selector to lists and watches of node classes.
func omitDefaultNodeClass(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	if request.Method == http.MethodGet && request.URL.Path == nodeClassesPath {
		request = request.Clone(request.Context())
		query := request.URL.Query()
		selector := "metadata.name!=" + v1alpha1.DefaultNodeClass
		if others := query.Get("fieldSelector"); others != "" {
			selector = others + "," + selector
		}
		query.Set("fieldSelector", selector)
		request.URL.RawQuery = query.Encode()
	}
	return next.RoundTrip(request)
}

func (p *operated) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, proxy := range p.proxies {
		_ = proxy.Close() // nothing uses it any more
	}
}
