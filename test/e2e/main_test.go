// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/progress"
)

// The guests. Stories that leave a guest as they found it share one; a story that deletes its HostedCluster has its own.
const (
	blue  = "blue"
	green = "green"
	red   = "red"
)

// The payloads that the world has in its registry, by the Kubernetes version they give to nodes.
const (
	initialRelease  = localworld.InitialRelease
	upgradedRelease = localworld.UpgradedRelease
)

// runtimeObject shortens signatures of callbacks of apimachinery.
type runtimeObject = runtime.Object

var world *localworld.World

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "autonode-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a folder for the world:", err)
		return 1
	}
	// The pods' users have to reach what the node agent unpacks for them.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "opening the world's folder to its pods:", err)
		return 1
	}
	log, err := os.Create(filepath.Join(dir, "world.log"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "opening the world's log:", err)
		return 1
	}
	defer log.Close()
	localworld.RedirectLogs(log)
	world, err = localworld.Start(ctx, localworld.Config{Dir: dir, Guests: []string{blue, green, red}, Progress: progress.New(os.Stdout)})
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting the world:", err)
		fmt.Fprintln(os.Stderr, "its logs are in", dir)
		return 1
	}
	defer func() {
		if err := world.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the world:", err)
			code = 1
		}
		if code != 0 {
			fmt.Fprintln(os.Stderr, "the world's logs are in", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, "removing the world's folder:", err)
		}
	}()
	// The testing package doesn't know signals: a world that is interrupted has to be stopped all the same.
	defer context.AfterFunc(ctx, func() {
		if err := world.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the world:", err)
		}
		os.Exit(1)
	})()
	return m.Run()
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, appsv1.AddToScheme, coordinationv1.AddToScheme,
		clusterv1.AddToScheme, bootstrapv1.AddToScheme, infrav1.AddToScheme,
		v1beta1.AddToScheme, v1alpha1.AddToScheme,
		func(scheme *runtime.Scheme) error {
			scheme.AddKnownTypes(karpenterGroupVersion,
				&karpenterv1.NodePool{}, &karpenterv1.NodePoolList{}, &karpenterv1.NodeClaim{}, &karpenterv1.NodeClaimList{})
			metav1.AddToGroupVersion(scheme, karpenterGroupVersion)
			return nil
		},
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building a scheme: %w", err)
		}
	}
	return scheme, nil
}

func newClient(config *rest.Config) (client.WithWatch, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.QPS = -1 // the stories look often
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}
