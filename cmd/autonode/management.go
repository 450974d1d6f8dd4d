// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/message"
	"github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// clusterFlags choose a cluster, as kubectl's do.
type clusterFlags struct{ kubeconfig, context string }

func (f *clusterFlags) add(flags *pflag.FlagSet, cluster string) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of "+cluster+"; without it $KUBECONFIG, else ~/.kube/config")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig; without it the current one")
}

func (f *clusterFlags) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
}

// namespace of the context; default if it names none.
func (f *clusterFlags) namespace() (string, error) {
	namespace, _, err := f.loader().Namespace()
	if err != nil {
		return "", fmt.Errorf("%w; name the namespace with --namespace", err)
	}
	return namespace, nil
}

func (f *clusterFlags) config() (*rest.Config, error) {
	config, err := f.loader().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%w; name the cluster with --kubeconfig or --context", err)
	}
	config.WarningHandler = rest.NewWarningWriter(&message.Writer{To: os.Stderr}, rest.WarningWriterOptions{Deduplicate: true})
	return config, nil
}

// managementFlags choose the management cluster.
type managementFlags struct{ clusterFlags }

func (f *managementFlags) add(flags *pflag.FlagSet) {
	f.clusterFlags.add(flags, "the management cluster")
}

// managementScheme knows the kinds of the management cluster that commands read and write.
func managementScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rbacv1.AddToScheme, clusterv1.AddToScheme, v1beta1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering kinds: %w", err)
		}
	}
	return scheme, nil
}

// client of the management cluster. The field owner of what it writes is the program.
func (f *managementFlags) client() (client.WithWatch, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	scheme, err := managementScheme()
	if err != nil {
		return nil, err
	}
	management, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	return management, nil
}
