// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/guest/watch"
)

// small is a scheme with the kinds that a drain is about: a simulated cluster goes through all kinds with each write.
var small = sync.OnceValues(func() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(
		admissionregistrationv1.AddToScheme, apiextensionsv1.AddToScheme, appsv1.AddToScheme, authenticationv1.AddToScheme, coordinationv1.AddToScheme,
		corev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, clusterv1.AddToScheme, v1beta1.AddToScheme, watch.AddToScheme,
	)
	return scheme, builder.AddToScheme(scheme)
})

// simulated returns two clusters in memory, for tests of many cases of which each has a guest of its own.
func simulated(t *testing.T) *scopetest.Clusters {
	t.Helper()
	g := NewWithT(t)
	scheme, err := small()
	g.Expect(err).NotTo(HaveOccurred())
	inMemory := func(cluster scopetest.Cluster) scopetest.Cluster {
		var uids atomic.Int64
		cluster.Client = fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(cluster.Client.RESTMapper()).
			WithStatusSubresource(&clusterv1.Cluster{}, &v1beta1.HostedCluster{}, &v1beta1.ControlPlaneComponent{}, &karpv1.NodeClaim{}).
			WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string { return []string{object.(*corev1.Pod).Spec.NodeName} }).
			WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					if review, ok := object.(*authenticationv1.TokenReview); ok {
						review.Status.Authenticated = true
						return nil
					}
					object.SetUID(types.UID(fmt.Sprint(uids.Add(1))))
					return c.Create(ctx, object, options...)
				},
				SubResourceCreate: func(ctx context.Context, c client.Client, _ string, account, answer client.Object, _ ...client.SubResourceCreateOption) error {
					now := time.Now()
					if err := c.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
						return err
					}
					claims := fmt.Sprintf(`{"iat":%d,"exp":%d,"kubernetes.io":{"serviceaccount":{"uid":%q}}}`, now.Unix(), now.Add(8*time.Hour).Unix(), account.GetUID())
					answer.(*authenticationv1.TokenRequest).Status.Token = "." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "."
					return nil
				},
			}).Build()
		return cluster
	}
	simulated := &scopetest.Clusters{Management: inMemory(clusters.Management), Guest: inMemory(clusters.Guest)}
	definitions, err := crds.Embedded()
	g.Expect(err).NotTo(HaveOccurred())
	for _, definition := range definitions {
		g.Expect(simulated.Guest.Client.Create(t.Context(), definition.DeepCopy())).To(Succeed())
	}
	return simulated
}
