// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listing is a client that lists as the test does.
type listing struct {
	client.Client
	list func() error
}

func (l listing) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return l.list()
}

func TestList(t *testing.T) {
	t.Run("When a list is decoded for longer than the command may take, it should be abandoned", func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		decoded := make(chan struct{})
		defer close(decoded)
		list := func() error { cancel(); <-decoded; return nil }
		g.Expect(bounded{listing{list: list}}.List(ctx, &corev1.NodeList{})).To(MatchError(context.Canceled))
	})
	t.Run("When it is read in time, its result should be the list's", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(bounded{listing{list: func() error { return nil }}}.List(t.Context(), &corev1.NodeList{})).To(Succeed())
		g.Expect(bounded{listing{list: func() error { return errNone }}}.List(t.Context(), &corev1.NodeList{})).To(MatchError(errNone))
	})
	t.Run("When a command connects to a cluster, its lists should be bounded", func(t *testing.T) {
		g := NewWithT(t)
		connected, err := NewClient(&rest.Config{Host: "https://10.0.0.1:6443"}, runtime.NewScheme())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(connected).To(BeAssignableToTypeOf(bounded{}))
	})
}
