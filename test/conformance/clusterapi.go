// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/crds"
	guestassets "github.com/autonode-io/autonode/assets/guest"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/crd"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/process"
)

var (
	//go:embed nodeclass.yaml
	nodeClass []byte
	//go:embed dra-nodeclass.yaml
	draNodeClass []byte
	//go:embed nodepool.yaml
	nodePool []byte
	//go:embed small-nodepool.yaml
	smallNodePool []byte
	//go:embed templates.yaml
	templates []byte
)

// tokenLifetime is longer than the suite. In production tokens are short-lived and renewed, which other tests cover.
const tokenLifetime = 4 * time.Hour

// clusterAPI is AutoNode's provider without the operator. In both clusters it has the permissions that the operator
// grants, and those of the feature gate CapacityBuffer.
type clusterAPI struct {
	program    string
	management *controlplane.Cluster
	client     client.Client // for management
	dir        string
	// files are those of the node classes and node pools, by the names of the embedded ones.
	files map[string]string
}

var _ provider = (*clusterAPI)(nil)

func newClusterAPI(program string, management *controlplane.Cluster, dir string) (*clusterAPI, error) {
	scheme, err := newScaleScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(management.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	p := &clusterAPI{program: program, management: management, client: c, dir: dir, files: map[string]string{}}
	for name, data := range map[string][]byte{
		"nodeclass.yaml": nodeClass, "dra-nodeclass.yaml": draNodeClass, "nodepool.yaml": nodePool, "small-nodepool.yaml": smallNodePool,
	} {
		if p.files[name], err = writeFile(dir, name, data); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *clusterAPI) defaults() [][]byte { return [][]byte{nodeClass, nodePool} }

func (p *clusterAPI) small() string { return "c2-small" }

func (p *clusterAPI) suiteArgs(s spec) []string {
	class, pool := "nodeclass.yaml", "nodepool.yaml"
	switch {
	case s.suite.name == DRA:
		class = "dra-nodeclass.yaml"
	case strings.HasPrefix(s.text, "CapacityBuffer "):
		pool = "small-nodepool.yaml"
	}
	return []string{"-default-nodeclass=" + p.files[class], "-default-nodepool=" + p.files[pool], "-repair-condition=" + repairCondition}
}

// repairCondition is a node condition for which the provider replaces a node, and which the world's kubelets leave alone.
// Of those it has the shortest toleration, ten minutes from the Node's creation; the specs wait for fifteen.
const repairCondition = "AcceleratedHardwareReady=False"

// namespace is the control-plane namespace of a guest in the world.
func (p *clusterAPI) namespace(guest string) string { return "clusters-" + guest }

func (p *clusterAPI) start(ctx context.Context, s setup, guest *controlplane.Cluster, c client.Client) (runner, error) {
	definitions, err := crds.Embedded()
	if err != nil {
		return runner{}, err
	}
	if err := crd.Install(ctx, c, append(definitions, missing(definitions)...)...); err != nil {
		return runner{}, err
	}
	if err := p.createTemplates(ctx, guest.Name); err != nil {
		return runner{}, err
	}
	guestKubeconfig, err := p.guestAccess(ctx, guest, c)
	if err != nil {
		return runner{}, err
	}
	managementKubeconfig, err := p.managementAccess(ctx, guest.Name)
	if err != nil {
		return runner{}, err
	}
	return s.run(ctx, process.Spec{
		Path: p.program,
		Args: []string{"--guest-kubeconfig=" + guestKubeconfig, "--cluster-name=" + guest.Name, "--namespace=" + p.namespace(guest.Name)},
		Env:  []string{"KUBECONFIG=" + managementKubeconfig},
	}, Bare, guest.Name, c)
}

// missing returns Karpenter's CustomResourceDefinitions that aren't among those.
func missing(among []*apiextensionsv1.CustomResourceDefinition) []*apiextensionsv1.CustomResourceDefinition {
	var others []*apiextensionsv1.CustomResourceDefinition
	for _, definition := range apis.CRDs {
		if !slices.ContainsFunc(among, func(d *apiextensionsv1.CustomResourceDefinition) bool { return d.Name == definition.Name }) {
			others = append(others, definition.DeepCopy())
		}
	}
	return others
}

// createTemplates creates the machine templates that specs need beside the world's.
func (p *clusterAPI) createTemplates(ctx context.Context, guest string) error {
	for document := range bytes.SplitSeq(templates, []byte("\n---\n")) {
		template := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, template); err != nil {
			return fmt.Errorf("decoding a machine template: %w", err)
		}
		template.SetNamespace(p.namespace(guest))
		labels := template.GetLabels()
		labels[clusterv1.ClusterNameLabel] = guest
		template.SetLabels(labels)
		if err := p.client.Create(ctx, template); err != nil {
			return fmt.Errorf("creating machine template %s: %w", template.GetName(), err)
		}
	}
	return nil
}

func (p *clusterAPI) guestAccess(ctx context.Context, guest *controlplane.Cluster, c client.Client) (string, error) {
	account, role, binding, err := guestassets.Access()
	if err != nil {
		return "", err
	}
	role.Rules = append(role.Rules, capacityBufferRules...)
	tokens, tokensBinding, err := guestassets.Roles()
	if err != nil {
		return "", err
	}
	return p.access(ctx, c, guest.RESTConfig(), account, guest.Name+".karpenter.kubeconfig", role, binding, tokens, tokensBinding)
}

// capacityBufferRules are those of Karpenter's chart for the feature gate CapacityBuffer.
var capacityBufferRules = []rbacv1.PolicyRule{
	{APIGroups: []string{"autoscaling.x-k8s.io"}, Resources: []string{"capacitybuffers", "capacitybuffers/status"},
		Verbs: []string{"get", "list", "watch", "update", "patch"}},
	{APIGroups: []string{""}, Resources: []string{"podtemplates", "replicationcontrollers"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"apps"}, Resources: []string{"deployments", "replicasets", "statefulsets"}, Verbs: []string{"get", "list", "watch"}},
}

func (p *clusterAPI) managementAccess(ctx context.Context, guest string) (string, error) {
	account, err := karpenterassets.ServiceAccount()
	if err != nil {
		return "", err
	}
	role, err := karpenterassets.Role()
	if err != nil {
		return "", err
	}
	// The operator appends the kinds that the node class names; see operator/provider/clusterapi.
	for _, group := range []struct{ name, template, child string }{
		{infrav1.GroupVersion.Group, "kwokmachinetemplates", "kwokmachines"},
		{bootstrapv1.GroupVersion.Group, "kubeadmconfigtemplates", "kubeadmconfigs"},
	} {
		role.Rules = append(role.Rules,
			rbacv1.PolicyRule{APIGroups: []string{group.name}, Resources: []string{group.template}, Verbs: []string{"get", "list", "watch"}},
			rbacv1.PolicyRule{APIGroups: []string{group.name}, Resources: []string{group.child},
				Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}})
	}
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}})
	binding, err := karpenterassets.RoleBinding()
	if err != nil {
		return "", err
	}
	namespace := p.namespace(guest)
	account.Namespace, role.Namespace, binding.Namespace = namespace, namespace, namespace
	for i := range binding.Subjects {
		binding.Subjects[i].Namespace = namespace
	}
	return p.access(ctx, p.client, p.management.RESTConfig(), account, guest+".management.kubeconfig", role, binding)
}

// access creates a ServiceAccount with its permissions and writes a kubeconfig with its token.
func (p *clusterAPI) access(ctx context.Context, c client.Client, config *rest.Config, account *corev1.ServiceAccount, file string, rights ...client.Object) (string, error) {
	for _, object := range append([]client.Object{account}, rights...) {
		if err := c.Create(ctx, object); err != nil {
			return "", fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	seconds := int64(tokenLifetime / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := c.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("asking for a token of %s: %w", account.Name, err)
	}
	const name = "karpenter"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.CurrentContext = name
	data, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return "", fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return writeFile(p.dir, file, data)
}

// machineKinds are the kinds of a node's objects in the management cluster.
var machineKinds = []schema.GroupVersionKind{
	clusterv1.GroupVersion.WithKind("Machine"),
	infrav1.GroupVersion.WithKind("KwokMachine"),
	bootstrapv1.GroupVersion.WithKind("KubeadmConfig"),
}

func (p *clusterAPI) leftovers(ctx context.Context, guest string) ([]string, error) {
	var names []string
	for _, kind := range machineKinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if err := p.client.List(ctx, list, client.InNamespace(p.namespace(guest))); err != nil {
			return nil, fmt.Errorf("listing what is left of machines: %w", err)
		}
		for _, item := range list.Items {
			names = append(names, fmt.Sprintf("%s %s/%s", kind.Kind, item.Namespace, item.Name))
		}
	}
	return names, nil
}

// accompany deletes a guest's NodePools, and so their NodeClaims, when a node class is being deleted, until stop is
// called. A node class stays until its NodeClaims are deleted, but the DRA suite waits for its end before it deletes
// other objects: Karpenter's own provider has no finalizer on node classes.
func (p *clusterAPI) accompany(ctx context.Context, s spec, guest *controlplane.Cluster) (stop func(), err error) {
	if s.suite.name != DRA {
		return func() {}, nil
	}
	c, err := client.NewWithWatch(guest.RESTConfig(), client.Options{})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", guest.Name, err)
	}
	classes := &unstructured.UnstructuredList{}
	classes.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind + "List"))
	events, err := c.Watch(ctx, classes)
	if err != nil {
		return nil, fmt.Errorf("watching node classes: %w", err)
	}
	go func() {
		for event := range events.ResultChan() {
			class, ok := event.Object.(*unstructured.Unstructured)
			if !ok || class.GetDeletionTimestamp() == nil {
				continue
			}
			pools := &unstructured.Unstructured{}
			pools.SetGroupVersionKind(schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodePool"})
			if err := c.DeleteAllOf(ctx, pools); err != nil {
				ctrl.Log.Error(err, "Deleting the node pools of a node class", "ClusterAPINodeClass", klog.KObj(class))
			}
		}
	}()
	return events.Stop, nil
}

func (p *clusterAPI) stop() {}
