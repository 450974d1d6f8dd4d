// SPDX-License-Identifier: Apache-2.0

// Package cluster connects commands to the clusters that their flags choose.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/internal/headers"
	"github.com/autonode-io/autonode/internal/message"
)

// Management and Guest are the clusters of commands.
const (
	Management = "management"
	Guest      = "guest"
)

// Flags choose a cluster.
type Flags struct {
	// Kubeconfig and Context are of this cluster alone: --guest-kubeconfig and --guest-context.
	Kubeconfig, Context string

	// common are --kubeconfig, which is of both clusters, and --context.
	common *Flags
	// own: the command is about this cluster, so that it reads it without flags, and --context is of it.
	own bool
}

// Add adds the flags of the clusters that a command reads: f chooses the one that it is about, and other the other one; nil for none.
func (f *Flags) Add(cmd *cobra.Command, cluster string, other *Flags) {
	f.common, f.own = &Flags{}, true
	cmd.Flags().StringVar(&f.common.Kubeconfig, "kubeconfig", "", "kubeconfig; without it $KUBECONFIG, else ~/.kube/config")
	cmd.Flags().StringVar(&f.common.Context, "context", "", "context of the "+cluster+" cluster; without it the current one")
	f.add(cmd, cluster, "--context")
	if other != nil {
		other.common = f.common
		second := map[string]string{Management: Guest, Guest: Management}[cluster]
		other.add(cmd, second, "and --"+second+"-kubeconfig that cluster isn't read")
	}
}

func (f *Flags) add(cmd *cobra.Command, cluster, usual string) {
	cmd.Flags().StringVar(&f.Kubeconfig, cluster+"-kubeconfig", "", "kubeconfig of the "+cluster+" cluster; without it --kubeconfig")
	cmd.Flags().StringVar(&f.Context, cluster+"-context", "", "context of the "+cluster+" cluster; without it "+usual)
}

// Chosen reports whether a command reads the cluster: its own, or one that flags choose.
func (f *Flags) Chosen() bool { return f.own || f.Kubeconfig != "" || f.Context != "" }

// loader reads the kubeconfig, and returns the context that flags choose in it.
func (f *Flags) loader() (loader clientcmd.ClientConfig, chosen string) {
	rules, overrides := clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{CurrentContext: f.Context}
	rules.ExplicitPath = f.Kubeconfig
	if f.common != nil {
		rules.ExplicitPath = cmp.Or(f.Kubeconfig, f.common.Kubeconfig)
	}
	if f.own {
		overrides.CurrentContext = cmp.Or(f.Context, f.common.Context)
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides), overrides.CurrentContext
}

// Namespace of the context; default if it names none.
func (f *Flags) Namespace() (string, error) {
	loader, _ := f.loader()
	namespace, _, err := loader.Namespace()
	switch {
	case err == nil:
		return namespace, nil
	case clientcmd.IsEmptyConfig(err):
		return "", errNone
	}
	return "", fmt.Errorf("%w; name the namespace with --namespace", err)
}

var errNone = errors.New("there is no kubeconfig: set $KUBECONFIG, or name one with --kubeconfig")

// Key returns the key of an object that an argument names as NAME or NAMESPACE/NAME. namespace is --namespace; without either it is that
// of the context. what is for the error, such as "a pod, like shop/web".
func (f *Flags) Key(argument, namespace, what string) (key client.ObjectKey, err error) {
	key = client.ObjectKey{Namespace: namespace, Name: argument}
	before, after, both := strings.Cut(argument, "/")
	if both {
		key = client.ObjectKey{Namespace: before, Name: after}
	}
	switch {
	case key.Name == "" || strings.Contains(key.Name, "/") || both && key.Namespace == "":
		return client.ObjectKey{}, fmt.Errorf("%q isn't the name of %s", argument, what)
	case namespace != "" && namespace != key.Namespace:
		return client.ObjectKey{}, fmt.Errorf("%q and --namespace %s name different namespaces; leave one of them out", argument, namespace)
	case key.Namespace == "":
		key.Namespace, err = f.Namespace()
	}
	return key, err
}

// Config is the configuration of the cluster.
func (f *Flags) Config() (*rest.Config, error) {
	loader, chosen := f.loader()
	if raw, err := loader.RawConfig(); err == nil && chosen != "" && raw.Contexts[chosen] == nil {
		if len(raw.Contexts) == 0 {
			return nil, errNone
		}
		return nil, fmt.Errorf("the kubeconfig has no context %q; it has %s", chosen,
			strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", "))
	}
	config, err := loader.ClientConfig()
	switch {
	case err == nil:
	case clientcmd.IsEmptyConfig(err):
		return nil, errNone
	default:
		return nil, fmt.Errorf("%w; name the cluster with --kubeconfig or --context", err)
	}
	headers.Bound(config)
	config.QPS = -1 // the API server's priority and fairness limits requests
	config.WarningHandler = rest.NewWarningWriter(&message.Writer{To: os.Stderr}, rest.WarningWriterOptions{Deduplicate: true})
	return config, nil
}

// Scheme has the kinds of both clusters that commands read and write.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	karpenter := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	metav1.AddToGroupVersion(scheme, karpenter)
	scheme.AddKnownTypes(karpenter, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme,
		v1beta1.AddToScheme, autonodev1alpha1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering kinds: %w", err)
		}
	}
	return scheme, nil
}

// Client is one of the cluster with all kinds of Scheme. The field owner of what it writes is the program.
func (f *Flags) Client() (client.Client, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	_, c, err := f.Connect(scheme)
	return c, err
}

// List lists a kind of AutoNode's in a guest. Errors name the missing kind, and what was being listed.
func (f *Flags) List(ctx context.Context, list client.ObjectList, kind, what string) error {
	guest, err := f.Client()
	if err != nil {
		return err
	}
	if err := guest.List(ctx, list); meta.IsNoMatchError(err) {
		return fmt.Errorf("this cluster has no %s, so AutoNode isn't on for it; choose another with --context or --kubeconfig, or ask the "+
			"platform team to set spec.autoNode", kind)
	} else if err != nil {
		return fmt.Errorf("listing %s: %w", what, err)
	}
	return nil
}

// Connect returns the configuration of the cluster, and a client with a scheme.
func (f *Flags) Connect(scheme *runtime.Scheme) (*rest.Config, client.Client, error) {
	config, err := f.Config()
	if err != nil {
		return nil, nil, err
	}
	c, err := NewClient(config, scheme)
	return config, c, err
}

// readTimeout bounds a list, with the time that Go takes to decode it: half an hour for a quantity such as 1e-999999999.
const readTimeout = 2 * time.Minute

// NewClient returns a client whose lists end, whatever the API server answers.
func NewClient(config *rest.Config, scheme *runtime.Scheme) (client.Client, error) {
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	return bounded{c}, nil
}

type bounded struct{ client.Client }

// List implements client.Reader. It abandons a list when ctx or readTimeout ends: decoding regards neither.
func (b bounded) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.Client.List(ctx, into, opts...) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("reading a list: %w", ctx.Err())
	}
}

// FieldOwner is the manager of the fields that this program writes.
const FieldOwner = "autonode-cli"

// DryRun is a command's --dry-run.
type DryRun string

// Values of --dry-run, as kubectl has them.
const (
	DryRunNone   DryRun = "none"
	DryRunClient DryRun = "client"
	DryRunServer DryRun = "server"
)

// Add adds --dry-run.
func (d *DryRun) Add(cmd *cobra.Command) {
	*d = DryRunNone
	command.AddChoice(cmd, (*string)(d), "dry-run", "", "client writes nothing, server lets the API server try it", string(DryRunNone),
		string(DryRunClient), string(DryRunServer))
}

// Suffix follows what would be done.
func (d DryRun) Suffix() string {
	return map[DryRun]string{DryRunClient: " (dry run)", DryRunServer: " (server dry run)"}[d]
}
