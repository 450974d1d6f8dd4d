// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/progress"
)

// RunTests runs a package's tests, all of them in one world, and returns their exit code. It sets world, and a folder for it, which stays
// when a test fails. Tests that have passed fail for what a function of afterwards finds wrong.
func RunTests(tests interface{ Run() int }, name string, config Config, world **World, afterwards ...func() []string) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "autonode-"+name+"-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the pods' users have to reach what the node agent unpacks for them
	}
	var libraries *os.File
	if err == nil {
		libraries, err = os.CreateTemp("", "autonode-"+name+"-*.log")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a folder for the world:", err)
		return 1
	}
	RedirectLogs(libraries)
	defer func() {
		if code != 0 {
			fmt.Fprintln(os.Stderr, "the world's logs are in", dir, "and the libraries' in", libraries.Name())
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, "removing the world's folder:", err)
		}
		_ = os.Remove(libraries.Name())
	}()
	config.Dir, config.Progress = dir, progress.New(os.Stdout)
	started, err := Start(ctx, config)
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting the world:", err)
		return 1
	}
	*world = started
	defer context.AfterFunc(ctx, func() {
		_ = started.Stop()
		os.Exit(1)
	})()
	code = tests.Run()
	for _, check := range afterwards {
		for _, wrong := range check() {
			fmt.Fprintln(os.Stderr, wrong)
			code = 1
		}
	}
	if err := started.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the world:", err)
		code = 1
	}
	return code
}

// NewClient returns a test's client of management or of a guest. It has the kinds of both, and those that are added.
func NewClient(config *rest.Config, add ...func(*runtime.Scheme) error) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range append(add, clientgoscheme.AddToScheme, clusterv1.AddToScheme, v1beta1.AddToScheme, v1alpha1.AddToScheme) {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building a scheme: %w", err)
		}
	}
	karpenter := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenter)
	config = rest.CopyConfig(config)
	config.QPS = -1 // tests poll often
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}
