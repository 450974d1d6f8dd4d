// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/ec2"
	"github.com/autonode-io/autonode/test/world/progress"
)

// The guests: a story has one for itself. Stories are told one after the other, because quotas and faults are the account's.
const (
	blue  = "blue"
	green = "green"
	red   = "red" // with platform AWS
)

// Capacity reservations: of the guest with platform AWS, and of a catalog.
const (
	reservation = "cr-0red"
	booked      = "cr-0booked"
)

// world is that of all stories.
var world *localworld.World

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "autonode-aws-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the pods' users have to reach what the node agent unpacks for them
	}
	var libraries *os.File
	if err == nil {
		libraries, err = os.CreateTemp("", "autonode-aws-*.log")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a folder for the world:", err)
		return 1
	}
	localworld.RedirectLogs(libraries)
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
	region := ec2.Sample("v"+localworld.InitialRelease, "v"+localworld.UpgradedRelease)
	region.Reservations = append(region.Reservations,
		ec2.CapacityReservation{ID: reservation, Type: "m5.xlarge", Zone: zoneB, Total: 1, Targeted: true},
		ec2.CapacityReservation{ID: booked, Type: "c5.large", Zone: zoneB, Total: 1, Targeted: true})
	world, err = localworld.Start(ctx, localworld.Config{
		Dir: dir, Guests: []string{blue, green, red}, AWS: &region, Audit: true, Infrastructure: localworld.InfrastructureAWS, Progress: progress.New(os.Stdout),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting the world:", err)
		return 1
	}
	defer context.AfterFunc(ctx, func() {
		_ = world.Stop()
		os.Exit(1)
	})()
	code = m.Run()
	for _, missing := range world.EC2().Unanswered() {
		fmt.Fprintln(os.Stderr, "EC2 was asked for what the stand-in can't:", missing)
		code = 1
	}
	if err := world.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the world:", err)
		code = 1
	}
	return code
}

func newClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme, v1beta1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building a scheme: %w", err)
		}
	}
	karpenter := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpenterv1.NodePool{}, &karpenterv1.NodePoolList{}, &karpenterv1.NodeClaim{}, &karpenterv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenter)
	config = rest.CopyConfig(config)
	config.QPS = -1 // the stories look often
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}
