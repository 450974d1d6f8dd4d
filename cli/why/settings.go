// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/karpenter/operator"
)

// runningKarpenter reads Karpenter's Deployment. A namespace that clusters share has one for each.
func runningKarpenter(ctx context.Context, management client.Reader, namespace, name string) (*appsv1.Deployment, error) {
	running, key := &appsv1.Deployment{}, client.ObjectKey{Namespace: namespace, Name: cmp.Or(name, v1beta1.KarpenterComponent)}
	err := management.Get(ctx, key, running)
	if err == nil {
		return running, nil
	}
	missing := fmt.Errorf("namespace %s of the management cluster has no Deployment %s; "+
		"name the control-plane namespace of this guest, or leave out the management cluster", key.Namespace, key.Name)
	switch {
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading Karpenter's Deployment in namespace %s: %w", namespace, err)
	case name != "":
		return nil, missing
	}
	all := &appsv1.DeploymentList{}
	if err := management.List(ctx, all, client.InNamespace(namespace), client.HasLabels{v1beta1.ClusterNameLabel}); err != nil {
		return nil, missing
	}
	var names []string
	for i := range all.Items {
		if deployment := &all.Items[i]; deployment.Name == v1beta1.SharedNames(deployment.Labels[v1beta1.ClusterNameLabel]).Karpenter {
			names, running = append(names, deployment.Name), deployment
		}
	}
	switch len(names) {
	case 0:
		return nil, missing
	case 1:
		return running, nil
	}
	return nil, fmt.Errorf("clusters share namespace %s of the management cluster, with the Deployments %s; choose a cluster with "+
		"--hosted-cluster",
		namespace, strings.Join(names, ", "))
}

// simulatedOptions reads the flags and variables of Karpenter's container. instead replaces flags.
func simulatedOptions(running *appsv1.Deployment, namespace string, instead map[string]string) (operator.Options, *options.Options, error) {
	known := &options.FlagSet{FlagSet: flag.NewFlagSet("known", flag.ContinueOnError)}
	(&operator.Options{}).AddFlags(known)
	(&options.Options{}).AddFlags(known)
	var args []string
	for _, container := range running.Spec.Template.Spec.Containers {
		for _, variable := range container.Env {
			name := strings.ToLower(strings.ReplaceAll(variable.Name, "_", "-"))
			if variable.ValueFrom == nil && known.Lookup(name) != nil {
				// The kubelet reads $$ as $; no value refers to another variable.
				args = append(args, fmt.Sprintf("--%s=%s", name, strings.ReplaceAll(variable.Value, "$$", "$")))
			}
		}
		args = append(args, container.Args...)
	}
	for name, value := range instead {
		args = append(args, fmt.Sprintf("--%s=%s", name, value))
	}
	args = append(args, "--guest-kubeconfig=", "--management-kubeconfig=")
	if instead["namespace"] == "" {
		args = append(args, "--namespace="+namespace)
	}
	provider, core, err := operator.ParseOptions(args, io.Discard)
	if err != nil {
		return provider, nil, fmt.Errorf("reading the settings of Karpenter in namespace %s: %w; this program may be older than that Karpenter, "+
			"or it is another provider's: then leave out the management cluster", namespace, err)
	}
	return provider, core, nil
}

// mountedFiles writes the ConfigMaps that Karpenter reads as files into a folder, and returns the flags with their paths there.
func mountedFiles(ctx context.Context, management client.Reader, running *appsv1.Deployment, folder string) (map[string]string, error) {
	flags := map[string]string{}
	pod := &running.Spec.Template.Spec
	for _, container := range pod.Containers {
		for _, variable := range container.Env {
			mount := slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(variable.Value) })
			if !strings.HasSuffix(variable.Name, "_FILE") || mount < 0 {
				continue
			}
			volume := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool {
				return v.Name == container.VolumeMounts[mount].Name && v.ConfigMap != nil
			})
			if volume < 0 {
				continue
			}
			flag := strings.ToLower(strings.ReplaceAll(variable.Name, "_", "-"))
			flags[flag] = filepath.Join(folder, flag)
			content := &corev1.ConfigMap{}
			err := management.Get(ctx, client.ObjectKey{Namespace: running.Namespace, Name: pod.Volumes[volume].ConfigMap.Name}, content)
			if apierrors.IsNotFound(err) {
				continue // it need not exist
			}
			if err != nil {
				return nil, fmt.Errorf("reading ConfigMap %s: %w", pod.Volumes[volume].ConfigMap.Name, err)
			}
			if err := os.WriteFile(flags[flag], []byte(content.Data[filepath.Base(variable.Value)]), 0o600); err != nil {
				return nil, err
			}
		}
	}
	return flags, nil
}
