// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator"
)

const (
	shardLabel     = "autonode.io/shard"
	shardNamespace = "shards"
)

// write is a request of an operator's that changes something, or that tried to.
type write struct {
	operator, cluster, request, body string
	began, ended                     time.Time
	refused                          bool
	// revision is the HostedCluster's after a write of status.operator: the order in which the API server took those of all operators,
	// whatever the order in which they came to know.
	revision uint64
}

// takes and letsGo report whether a write acquires or releases a HostedCluster by status.operator. The API server
// rejects such a write if another operator was faster.
func (w *write) takes() bool {
	return strings.Contains(w.body, fmt.Sprintf(`"operator":%q`, shardNamespace+"/"+w.operator))
}
func (w *write) letsGo() bool { return strings.Contains(w.body, `"operator":null`) }

// ledger writes down what the operators write about the clusters of a test.
type ledger struct {
	mu     sync.Mutex
	writes []*write
}

// ofCluster finds the cluster that a request is about: HostedCluster clusters/shard-1, or namespace clusters-shard-1.
var ofCluster = regexp.MustCompile(`/(?:namespaces/clusters-|hostedclusters/)(shard-\d+)(?:/|$)`)

// of returns the config of an operator all of whose writes are written down, but for its Lease and its events, which report what it has done.
func (l *ledger) of(operator string) *rest.Config {
	config := rest.CopyConfig(clusters.Management.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			cluster := ofCluster.FindStringSubmatch(request.URL.Path)
			if request.Method == http.MethodGet || cluster == nil || strings.Contains(request.URL.Path, "/events") {
				return next.RoundTrip(request)
			}
			w := &write{operator: operator, cluster: cluster[1], request: request.Method + " " + request.URL.Path, began: time.Now()}
			if body, err := request.GetBody(); err == nil {
				data, _ := io.ReadAll(body)
				w.body = string(data)
			}
			response, err := next.RoundTrip(request)
			w.ended = time.Now()
			w.refused = err != nil || response.StatusCode >= 300
			if !w.refused && (w.takes() || w.letsGo()) {
				if w.revision, err = revisionOf(response); err != nil {
					return nil, err
				}
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.writes = append(l.writes, w)
			return response, err
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// revisionOf reads the resource version of the object in a response, and leaves the response as it was.
func revisionOf(response *http.Response) (uint64, error) {
	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return 0, err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	object := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(body, object); err != nil {
		return 0, err
	}
	return strconv.ParseUint(object.ResourceVersion, 10, 64)
}

// hold is the time from an operator's acquisition of a cluster to its release, which is nil while it holds it.
type hold struct{ taken, letGo *write }

// covers is true for a write that began when its operator knew that it held the cluster, and ended before it began to release it. All of these
// times are one process's own.
func (h hold) covers(w *write) bool {
	return w.operator == h.taken.operator && !w.began.Before(h.taken.ended) && (h.letGo == nil || !w.ended.After(h.letGo.began))
}

// check goes through the writes about one cluster: the operators' holds of it may not overlap, and each other write has to be within one of
// its operator's. It returns how often the cluster was taken.
func (l *ledger) check(g Gomega, cluster string) (taken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var turns, others []*write
	for _, w := range l.writes {
		switch {
		case w.cluster != cluster:
		case !w.takes() && !w.letsGo():
			others = append(others, w)
		case !w.refused:
			turns = append(turns, w)
		}
	}
	slices.SortFunc(turns, func(a, b *write) int { return cmp.Compare(a.revision, b.revision) })
	var holds []hold
	for _, w := range turns {
		var holder *hold
		if last := len(holds) - 1; last >= 0 && holds[last].letGo == nil {
			holder = &holds[last]
		}
		if w.takes() {
			g.Expect(holder).To(BeNil(), "%s was taken by %s at %d while %v held it", cluster, w.operator, w.revision, holder)
			holds = append(holds, hold{taken: w})
			continue
		}
		g.Expect(holder).NotTo(BeNil(), "%s was released by %s at %d without a holder", cluster, w.operator, w.revision)
		g.Expect(w.operator).To(Equal(holder.taken.operator), "%s was released at %d", cluster, w.revision)
		holder.letGo = w
	}
	for _, w := range others {
		g.Expect(slices.ContainsFunc(holds, func(h hold) bool { return h.covers(w) })).To(BeTrue(),
			"%s: %s by %s, which didn't hold it", cluster, w.request, w.operator)
	}
	return len(holds)
}

func TestShards(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx, management := t.Context(), clusters.Management.Client
	provide(t)
	image := push(t, serveRegistry(t), "1.36.2")
	g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shardNamespace}})).To(Succeed())

	removeAll(t, shardLabel)
	writes := &ledger{}
	shards := []string{"a", "b"}
	for _, shard := range shards {
		run(t, writes.of(shard), operator.Options{
			LeaderElection: true, LeaderElectionNamespace: shardNamespace, LeaseName: shard,
			HostedClusterSelector: shardLabel + "=" + shard, MetricsRegistry: prometheus.NewRegistry(),
		})
	}
	ofShard := func(namespace, name, shard string) *v1beta1.HostedCluster {
		hostedCluster := newHosted(namespace, name, image)
		hostedCluster.Labels[shardLabel] = shard
		return hostedCluster
	}
	var names []string
	for i := range 4 {
		name := fmt.Sprintf("shard-%d", i)
		names = append(names, name)
		platform(t, name)
		g.Expect(management.Create(ctx, ofShard("clusters", name, shards[i%2]))).To(Succeed())
	}
	role := func(name string) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-" + name, Name: "karpenter"}}
	}
	held := func(name string) {
		t.Helper()
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(hostedCluster.Status.Operator).To(Equal(shardNamespace + "/" + hostedCluster.Labels[shardLabel]))
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(role(name)), role(name))).To(Succeed())
		}).Should(Succeed())
	}

	t.Run("When there are two operators, each should serve what its selector matches", func(*testing.T) {
		for _, name := range names {
			held(name)
		}
	})

	t.Run("When clusters are relabelled under load, no operator should write for one that it doesn't hold", func(t *testing.T) {
		g := NewWithT(t)
		var load sync.WaitGroup
		loaded, stop := context.WithCancel(ctx)
		defer load.Wait()
		defer stop()
		for _, name := range names {
			load.Go(func() { // deleted objects have to be recreated
				for loaded.Err() == nil {
					_ = management.Delete(loaded, role(name))
				}
			})
		}
		served := func(name string) {
			g.Eventually(func(g Gomega) {
				hostedCluster := get(g, ctx, name)
				g.Expect(hostedCluster.Status.Operator).To(Equal(shardNamespace + "/" + hostedCluster.Labels[shardLabel]))
			}).Should(Succeed())
		}
		random := rand.New(rand.NewPCG(1, 2))
		for range 40 {
			name := names[random.IntN(len(names))]
			patch(g, ctx, name, func(hostedCluster *v1beta1.HostedCluster) {
				hostedCluster.Labels[shardLabel] = shards[random.IntN(len(shards))]
			})
			if random.IntN(4) == 0 {
				served(name)
			}
		}
		for _, name := range names { // a label that no operator noticed shows nothing
			served(name)
			patch(g, ctx, name, func(hostedCluster *v1beta1.HostedCluster) {
				other := shards[0]
				if hostedCluster.Labels[shardLabel] == other {
					other = shards[1]
				}
				hostedCluster.Labels[shardLabel] = other
			})
			served(name)
		}
		stop()
		load.Wait()
		for _, name := range names {
			held(name)
		}
		for _, name := range names {
			t.Logf("%s was taken %d times", name, writes.check(g, name))
			g.Expect(writes.check(g, name)).To(BeNumerically(">", 1), "else nothing was shown")
		}
	})

	t.Run("When two clusters of different operators come to the same namespace, the first alone should be served", func(t *testing.T) {
		g := NewWithT(t)
		for _, ns := range []string{"clusters-sh", "clusters-sh-ared"} {
			g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})).To(Succeed())
		}
		first, second := ofShard("clusters", "sh-ared", "a"), ofShard("clusters-sh", "ared", "b")
		for _, hostedCluster := range []*v1beta1.HostedCluster{first, second} {
			g.Expect(management.Create(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
				Namespace: "clusters-sh-ared", Name: hostedCluster.Name,
				Annotations: map[string]string{v1beta1.ConsentAnnotation: hostedCluster.Namespace + "/" + hostedCluster.Name},
			}})).To(Succeed())
		}
		g.Expect(management.Create(ctx, first)).To(Succeed())
		g.Eventually(func(g Gomega) { componentOf(g, ctx, "clusters-sh-ared") }).Should(Succeed())
		g.Expect(management.Create(ctx, second)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(second), second)).To(Succeed())
			g.Expect(reasonOf(second, v1beta1.ValidConfiguration)).To(Equal("False/InvalidSpec"))
			g.Expect(second.Status.AutoNode.Message).To(ContainSubstring("HostedCluster clusters/sh-ared"))
			g.Expect(second.Finalizers).To(BeEmpty())
		}).Should(Succeed())

		// Without its Cluster there is no guest to wait for.
		g.Expect(management.Delete(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-sh-ared", Name: first.Name}})).To(Succeed())
		g.Expect(management.Delete(ctx, first)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(second), second)).To(Succeed())
			g.Expect(reasonOf(second, v1beta1.ValidConfiguration)).To(Equal("True/AsExpected"))
		}).Should(Succeed())
	})
}
