// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"net/http"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// requests counts what reaches the API server, by method.
type requests struct {
	mu     sync.Mutex
	counts map[string]int
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		r.mu.Lock()
		r.counts[req.Method]++
		r.mu.Unlock()
		return next.RoundTrip(req)
	})
}

// reset forgets what was counted, and returns it.
func (r *requests) reset() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.counts
	r.counts = map[string]int{}
	return counts
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestCost(t *testing.T) {
	t.Run("When a machine is created, it should cost the management cluster three writes and no read", func(t *testing.T) {
		f := newFixture(t)
		counted := &requests{counts: map[string]int{}}
		config := rest.CopyConfig(f.Management.GetConfig())
		config.Wrap(counted.wrap)
		management, err := cluster.New(config, func(o *cluster.Options) {
			o.Scheme = f.Management.GetScheme()
			o.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{f.Namespace: {}}}
		})
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(machine.Index(t.Context(), management.GetFieldIndexer())).To(Succeed())
		_, err = management.GetCache().GetInformer(t.Context(), &clusterv1.Cluster{})
		f.Expect(err).NotTo(HaveOccurred())
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, 1)
		go func() { done <- management.Start(ctx) }()
		t.Cleanup(func() {
			stop()
			f.Expect(<-done).To(Succeed())
		})
		f.Expect(management.GetCache().WaitForCacheSync(ctx)).To(BeTrue())
		f.provider.Management = management.GetClient()
		f.provider.Machines = machine.New(machine.Config{
			Management: management.GetClient(), Live: management.GetAPIReader(),
			Namespace: f.Namespace, ClusterName: f.Cluster.Name, ChildKinds: environment.ChildKinds,
			Tokens: bootstraptoken.Minter{Guest: f.Admin, Clock: clock.RealClock{}},
		})
		// The kinds' resources are looked up once.
		f.launch("first", nil)

		nodeClaim := f.claim("counted", nil)
		counted.reset()
		_, err = f.provider.Create(f.ctx, nodeClaim)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(counted.reset()).To(Equal(map[string]int{http.MethodPost: 3}))
	})
}
