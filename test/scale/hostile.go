// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/test/audit"
	"github.com/autonode-io/autonode/test/world/controlplane"
)

// What an admin who owns a guest's API server fills it with. The largest sizes that an API server accepts.
const (
	hostileName  = "hostile"
	hostileLabel = "team.example/owner"
	// hostileRequests are certificate requests of hostileRequestBytes each.
	hostileRequests     = 100
	hostileRequestBytes = 1 << 20
	// hostileAnnotationBytes is on every hundredth Node.
	hostileAnnotationBytes = 200 << 10
	// hostileWriters change Nodes and the node class without a pause.
	hostileWriters = 4
)

// hostileGuest is a guest whose admin does all that slows an operator down. It has an API server for itself.
type hostileGuest struct {
	cluster *controlplane.Cluster
	log     *auditLog
	client  client.Client
	nodes   int
}

// isHostile reports whether a request in the management cluster is about the hostile guest.
func isHostile(r *audit.Record) bool {
	return strings.Contains(r.RequestURI, hostileName) || r.ObjectRef != nil && strings.Contains(r.ObjectRef.Name, hostileName)
}

func (b *bench) hostileKubeconfig(int) ([]byte, error) {
	return b.hostile.cluster.Kubeconfig(operatorUser, "system:masters")
}

// fillHostile creates Nodes, each with a kubelet version of its own, and certificate requests.
func (b *bench) fillHostile(ctx context.Context) error {
	config := b.hostile.cluster.RESTConfig()
	config.QPS = -1
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("connecting to the hostile guest: %w", err)
	}
	b.hostile.client = c
	request, err := largeRequest()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i := range b.hostile.nodes {
		group.Go(func() error { return b.hostile.createNode(ctx, i) })
	}
	for i := range hostileRequests {
		group.Go(func() error {
			if err := c.Create(ctx, &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", hostileName, i)},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Request: request,
					Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
				},
			}); err != nil {
				return fmt.Errorf("creating a certificate request: %w", err)
			}
			return nil
		})
	}
	return group.Wait()
}

func (h *hostileGuest) createNode(ctx context.Context, i int) error {
	if err := h.client.Create(ctx, hostileNode(i)); err != nil {
		return fmt.Errorf("creating a Node: %w", err)
	}
	return nil
}

// hostileNode is a Node of the largest labels. The operator watches only Nodes of a NodePool.
func hostileNode(i int) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("%s-%d", hostileName, i), Labels: map[string]string{karpv1.NodePoolLabelKey: strings.Repeat("x", 63)},
	}}
	for label := range 20 {
		node.Labels[fmt.Sprintf("%s-%d", hostileLabel, label)] = strings.Repeat("x", 63)
	}
	if i%100 == 0 {
		node.Annotations = map[string]string{hostileLabel: strings.Repeat("x", hostileAnnotationBytes)}
	}
	node.Status.NodeInfo.KubeletVersion = fmt.Sprintf("v1.36.%d", i)
	return node
}

// largeRequest is a certificate request whose organization is as long as an API server accepts it.
func largeRequest() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:hostile", Organization: []string{"system:nodes", strings.Repeat("x", hostileRequestBytes/2)},
	}}, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// attack changes Nodes and the status of the node class, as fast as the API server answers, until the context ends.
func (h *hostileGuest) attack(ctx context.Context) {
	var writers sync.WaitGroup
	for writer := range hostileWriters {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				h.change(ctx, writer, i)
			}
		})
	}
	writers.Wait()
}

func (h *hostileGuest) change(ctx context.Context, writer, i int) {
	var object client.Object
	var patch string
	if writer == 0 {
		class := &unstructured.Unstructured{}
		class.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
		class.SetName(v1alpha1.DefaultNodeClass)
		object, patch = class, fmt.Sprintf(`{"status":{"version":"v1.36.%d"}}`, i%1000)
	} else {
		object = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", hostileName, (writer*h.nodes/hostileWriters+i)%h.nodes)}}
		patch = fmt.Sprintf(`{"metadata":{"labels":{%q:"x%d"}},"status":{"nodeInfo":{"kubeletVersion":"v1.35.%d"}}}`, hostileLabel, i, i)
	}
	err := h.client.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch)))
	if apierrors.IsNotFound(err) { // the operator hasn't created the node class yet
		_ = pause(ctx, time.Second)
	}
}
