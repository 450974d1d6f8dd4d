// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/metrics"
)

// It counts for all guests together: a series per guest would add dozens each. Events name the guest.
var decisions = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: metrics.Namespace,
	Subsystem: "certificate",
	Name:      "requests_total",
	Help:      "Certificate requests of kubelets in guest clusters. Labeled by the signer, the decision and its reason.",
}, []string{"signer", "decision", "reason"})

// denials are the denials' reasons.
var denials = []string{
	v1beta1.RequestMalformedReason, v1beta1.RequestExpiredReason, v1beta1.RequesterMismatchReason, v1beta1.SubjectMismatchReason,
	v1beta1.NodeNameMismatchReason, v1beta1.AddressMismatchReason, v1beta1.UsageMismatchReason,
	v1beta1.MachineMissingReason, v1beta1.NodeClaimMissingReason,
	v1beta1.AlreadyJoinedReason, v1beta1.AlreadyRequestedReason, v1beta1.RequestSupersededReason,
}

func init() {
	crmetrics.Registry.MustRegister(decisions)
	// Start at zero, so that the first one shows as an increase.
	for _, signer := range []string{certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName} {
		decisions.WithLabelValues(signer, string(approved), v1beta1.NodeIdentityConfirmedReason)
		for _, reason := range denials {
			decisions.WithLabelValues(signer, string(denied), reason)
		}
	}
}
