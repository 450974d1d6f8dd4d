// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// stumbling is a client whose first creations fail.
type stumbling struct {
	client.Client
	errs  []error
	tries int
}

// Create implements client.Client.
func (s *stumbling) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	s.tries++
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return err
	}
	return s.Client.Create(ctx, object, opts...)
}

// hanging is a client that answers a request to create something late, or never, and whose cache is empty.
type hanging struct {
	client.Client
	after time.Duration
	err   error
	tries int
}

// Create implements client.Client.
func (h *hanging) Create(ctx context.Context, _ client.Object, _ ...client.CreateOption) error {
	h.tries++
	var answer <-chan time.Time
	if h.err != nil {
		answer = time.After(h.after)
	}
	select {
	case <-answer:
		return h.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// List implements client.Client.
func (h *hanging) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func TestCreateHiccup(t *testing.T) {
	resource := schema.GroupResource{Group: "cluster.x-k8s.io", Resource: "machines"}
	for name, err := range map[string]error{
		"has too much to do":            apierrors.NewTooManyRequests("later", 1),
		"took too long":                 apierrors.NewTimeoutError("slow", 1),
		"couldn't call a webhook":       apierrors.NewInternalError(errors.New("failed calling webhook")),
		"is just being restarted":       syscall.ECONNREFUSED,
		"hung up":                       syscall.ECONNRESET,
		"reports that others are first": apierrors.NewServerTimeout(resource, "create", 1),
	} {
		t.Run("When the API server "+name+", it should try again at once and make one Machine", func(t *testing.T) {
			s := newFixture(t)
			nodeClaim := s.NodeClaim(t.Context(), "hiccup")
			_, failed := s.Machines(&stumbling{Client: s.Management.GetClient(), errs: []error{err, err}}).Create(t.Context(), s.Plan(nodeClaim))
			s.Expect(failed).NotTo(HaveOccurred())
			s.expectOne(nodeClaim)
		})
	}

	t.Run("When the API server stays away, it should leave the next try to Karpenter", func(t *testing.T) {
		s := newFixture(t)
		management := &stumbling{Client: s.Management.GetClient(), errs: []error{syscall.ECONNREFUSED, syscall.ECONNREFUSED, syscall.ECONNREFUSED, syscall.ECONNREFUSED}}
		_, err := s.Machines(management).Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "away")))
		s.Expect(err).To(MatchError(syscall.ECONNREFUSED))
		s.Expect(management.tries).To(Equal(3))
	})

	for _, ended := range []error{context.Canceled, context.DeadlineExceeded} {
		t.Run("When Karpenter ends during a request, it should say so: "+ended.Error(), func(t *testing.T) {
			s := newFixture(t)
			management := &stumbling{Client: s.Management.GetClient(), errs: []error{ended}}
			created, err := s.Machines(management).Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "ends")))
			s.Expect(err).To(MatchError(ended))
			s.Expect(created).To(BeNil())
		})
	}

	t.Run("When the API server refuses the object, it should not try again", func(t *testing.T) {
		s := newFixture(t)
		management := &stumbling{Client: s.Management.GetClient(), errs: []error{apierrors.NewForbidden(resource, "", nil)}}
		_, err := s.Machines(management).Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "refused")))
		s.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		var rejected *machine.RejectedError
		s.Expect(errors.As(err, &rejected)).To(BeTrue(), "a retry can't help")
		s.Expect(management.tries).To(Equal(1))
	})

	t.Run("When a fault may pass, it should not say that the object was refused", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim := s.NodeClaim(t.Context(), "passes")
		for _, err := range []error{
			apierrors.NewUnauthorized("the token is being renewed"), apierrors.NewTooManyRequests("later", 1), apierrors.NewInternalError(errors.New("no webhook")),
			apierrors.NewConflict(resource, "quota", errors.New("changed")), syscall.ECONNREFUSED,
		} {
			_, err := s.Machines(&stumbling{Client: s.Management.GetClient(), errs: []error{err, err, err}}).Create(t.Context(), s.Plan(nodeClaim))
			var rejected *machine.RejectedError
			s.Expect(err).To(HaveOccurred())
			s.Expect(errors.As(err, &rejected)).To(BeFalse(), "%v", err)
		}
	})

	t.Run("When a request hangs, it should end, so that Karpenter can go on", func(t *testing.T) {
		s := newFixture(t)
		plan := s.Plan(s.NodeClaim(t.Context(), "hangs"))
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			began := time.Now()
			_, err := s.Machines(&hanging{}).Create(t.Context(), plan)
			g.Expect(err).To(MatchError(context.DeadlineExceeded))
			g.Expect(time.Since(began)).To(Equal(machine.CreateTimeout))
		})
	})

	t.Run("When a webhook takes its time to fail, it should not call it again", func(t *testing.T) {
		s := newFixture(t)
		plan := s.Plan(s.NodeClaim(t.Context(), "slow"))
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			slow := &hanging{after: 10 * time.Second, err: apierrors.NewInternalError(errors.New("failed calling webhook: deadline exceeded"))}
			_, err := s.Machines(slow).Create(t.Context(), plan)
			g.Expect(err).To(MatchError(slow.err))
			g.Expect(slow.tries).To(Equal(1))
		})
	})

	t.Run("When the caller gives up, it should not wait for others", func(t *testing.T) {
		s := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		management := &stumbling{Client: s.Management.GetClient()}
		_, err := s.Machines(management).Create(ctx, s.Plan(s.NodeClaim(t.Context(), "gone")))
		s.Expect(err).To(MatchError(context.Canceled))
	})
}
