// SPDX-License-Identifier: Apache-2.0

// Package undecodable reports which objects of the management cluster Go can't decode: in events on them and on their HostedCluster, and in
// a metric.
package undecodable

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lenient"
)

// Metric counts the objects, by kind.
const Metric = "autonode_undecodable_objects"

// waiting is how many objects may wait for their events: each is reported once. Those beyond are in the log and in the metric.
const waiting = 1024

// Reporter writes the events. SetUp comes after the manager's caches, which find the objects, have been made with it.
type Reporter struct {
	// Objects decodes the management cluster's objects, and finds those that can't be decoded.
	Objects *lenient.Decoder

	found chan finding
	Config
}

// Config configures SetUp.
type Config struct {
	// HostedClusters returns those that stand for a Cluster.
	HostedClusters func(ctx context.Context, cluster client.ObjectKey) ([]v1beta1.HostedCluster, error)
	Recorder       events.EventRecorder
	// Registry that serves the metric; nil is controller-runtime's.
	Registry prometheus.Registerer
}

type finding struct {
	object *metav1.PartialObjectMetadata
	why    string
}

var _ manager.Runnable = (*Reporter)(nil)

// New returns a Reporter of a scheme's objects.
func New(scheme *runtime.Scheme) *Reporter {
	r := &Reporter{found: make(chan finding, waiting)}
	r.Objects = lenient.New(scheme, Metric, r.report)
	return r
}

func (r *Reporter) report(object *metav1.PartialObjectMetadata, why string) {
	select {
	case r.found <- finding{object, why}:
	default: // no replica has the Lease, or a user creates such objects by the thousand
	}
}

// SetUp adds the Reporter to the manager.
func (r *Reporter) SetUp(mgr manager.Manager, config Config) error {
	r.Config = config
	if r.Registry == nil {
		r.Registry = crmetrics.Registry
	}
	if err := mgr.Add(r); err != nil {
		return fmt.Errorf("adding the reporter of undecodable objects: %w", err)
	}
	return nil
}

// Start writes events and serves the metric until ctx ends. A manager starts it where it holds the Lease only.
func (r *Reporter) Start(ctx context.Context) error {
	if err := r.Registry.Register(r.Objects); err != nil {
		return fmt.Errorf("registering the metric of undecodable objects: %w", err)
	}
	defer r.Registry.Unregister(r.Objects)
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-r.found:
			r.write(ctx, f)
		}
	}
}

func (r *Reporter) write(ctx context.Context, f finding) {
	const action = "Decode"
	r.Recorder.Eventf(f.object, nil, corev1.EventTypeWarning, v1beta1.UndecodableReason, action, "%s", lenient.Message(f.why))
	cluster := client.ObjectKey{Namespace: f.object.Namespace, Name: f.object.Labels[clusterv1.ClusterNameLabel]}
	if cluster.Name == "" && f.object.Kind == "Cluster" {
		cluster.Name = f.object.Name
	}
	if cluster.Name == "" {
		return
	}
	hostedClusters, err := r.HostedClusters(ctx, cluster)
	if err != nil {
		log.FromContext(ctx).Error(err, "finding the HostedCluster of an undecodable object")
		return
	}
	for i := range hostedClusters {
		r.Recorder.Eventf(&hostedClusters[i], f.object, corev1.EventTypeWarning, v1beta1.UndecodableReason, action, "%s %s/%s: %s",
			f.object.Kind, f.object.Namespace, f.object.Name, lenient.Message(f.why))
	}
}
