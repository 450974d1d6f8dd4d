// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"context"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

func TestMain(m *testing.M) { os.Exit(environment.Main(m)) }

// ruled returns a client that differs from guest only by what a test configures.
func ruled(guest client.Client, configure func(*guestclient.Config)) client.Client {
	config := guestclient.Config{
		Suspended:    func() error { return nil },
		Declares:     func(string, string) bool { return false },
		AwaitsTaints: func(context.Context, *corev1.Node) bool { return true },
		UnknownZone:  "default",
		Created:      func(context.Context, *karpv1.NodeClaim, error) {},
		Deleted:      func(*karpv1.NodeClaim) {},
		Written:      func(client.Object) {},
	}
	configure(&config)
	return guestclient.New(guest, config)
}
