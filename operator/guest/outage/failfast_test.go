// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestQuoting(t *testing.T) {
	t.Run("When a guest reports much in an error, no more than the beginning of it should be passed on, escaped", func(t *testing.T) {
		g := NewWithT(t)
		loud := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return apierrors.NewBadRequest("\x1b[2J" + strings.Repeat("x", 1<<20))
			},
		})
		err := failFastClient{loud, &failFast{clock: clock.RealClock{}, limit: time.Hour}}.Get(t.Context(), client.ObjectKey{Name: "x"}, &corev1.Node{})
		g.Expect(apierrors.IsBadRequest(err)).To(BeTrue())
		g.Expect(len(err.Error())).To(BeNumerically("<=", 210))
		g.Expect(err.Error()).To(HavePrefix(`"\x1b[2Jxxx`))
	})
}
