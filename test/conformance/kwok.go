// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kwokapis "sigs.k8s.io/karpenter/kwok/apis"
	kwokv1alpha1 "sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/apis"

	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/infrastructure/kubelet"
	"github.com/autonode-io/autonode/test/world/process"
)

var (
	//go:embed kwok-nodeclass.yaml
	kwokNodeClass []byte
	//go:embed kwok-nodepool.yaml
	kwokNodePool []byte
)

// kwokProvider is Karpenter's own provider, which creates Nodes in the guest and no other objects. They get the same
// kubelets as the nodes of AutoNode's provider.
type kwokProvider struct {
	program     string
	kubeconfig  func(guest string) string
	stops       []func()
	logger      logr.Logger
	stopWatches context.CancelFunc
	watches     context.Context //nolint:containedctx // it ends with the provider, not with a call
}

var _ provider = (*kwokProvider)(nil)

func newKwok(program string, kubeconfig func(guest string) string, logger logr.Logger) *kwokProvider {
	p := &kwokProvider{program: program, kubeconfig: kubeconfig, logger: logger}
	p.watches, p.stopWatches = context.WithCancel(context.Background())
	return p
}

// defaults are the objects that the suites have built in.
func (p *kwokProvider) defaults() [][]byte { return [][]byte{kwokNodeClass, kwokNodePool} }

func (p *kwokProvider) small() string { return "c-2x-amd64-linux" }

// suiteArgs are none: the suites' defaults are this provider's.
func (p *kwokProvider) suiteArgs(spec) []string { return nil }

// accompany has nothing to do.
func (p *kwokProvider) accompany(context.Context, spec, *controlplane.Cluster) (stop func(), err error) {
	return func() {}, nil
}

func (p *kwokProvider) start(ctx context.Context, s setup, guest *controlplane.Cluster, c client.Client) (runner, error) {
	var definitions []*apiextensionsv1.CustomResourceDefinition
	names := map[string]bool{}
	for _, definition := range append(append([]*apiextensionsv1.CustomResourceDefinition{}, apis.CRDs...), kwokapis.CRDs...) {
		if !names[definition.Name] {
			names[definition.Name] = true
			definitions = append(definitions, definition.DeepCopy())
		}
	}
	if err := crd.Install(ctx, c, definitions...); err != nil {
		return runner{}, err
	}
	if err := p.startKubelets(guest); err != nil {
		return runner{}, err
	}
	return s.run(ctx, process.Spec{
		Path: p.program,
		Env:  []string{"KUBECONFIG=" + p.kubeconfig(guest.Name), "LEADER_ELECTION_NAMESPACE=kube-system"},
	}, Kwok, guest.Name, c)
}

// startKubelets runs a kubelet for every Node of the provider, until the Node is deleted.
func (p *kwokProvider) startKubelets(guest *controlplane.Cluster) error {
	config := rest.CopyConfig(guest.RESTConfig())
	config.QPS = -1
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", guest.Name, err)
	}
	fleet, err := kubelet.Start(kubelet.Config{Guest: clientset, Logger: p.logger.WithValues("guest", guest.Name), Identity: "kubelet"})
	if err != nil {
		return fmt.Errorf("starting the kubelets of %s: %w", guest.Name, err)
	}
	factory := informers.NewSharedInformerFactory(clientset, 0)
	if _, err := factory.Core().V1().Nodes().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if node, ok := object.(*corev1.Node); ok && node.Annotations[kwokv1alpha1.KwokLabelKey] == kwokv1alpha1.KwokLabelValue {
				fleet.Run(node.Name)
			}
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if node, ok := object.(*corev1.Node); ok {
				fleet.Halt(node.Name)
			}
		},
	}); err != nil {
		fleet.Stop()
		return fmt.Errorf("watching the nodes of %s: %w", guest.Name, err)
	}
	factory.StartWithContext(p.watches)
	p.stops = append(p.stops, func() {
		factory.Shutdown()
		fleet.Stop()
	})
	return nil
}

// leftovers are none: the provider creates only Nodes, and the suite itself waits for their deletion.
func (p *kwokProvider) leftovers(context.Context, string) ([]string, error) { return nil, nil }

func (p *kwokProvider) stop() {
	p.stopWatches()
	for _, stop := range p.stops {
		stop()
	}
}
