// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"context"
	"io"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/cli/printer/printertest"
	"github.com/autonode-io/autonode/fleet/cost"
)

// withoutAutoNode has no CRDs.
type withoutAutoNode struct{ client.Reader }

func (withoutAutoNode) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return &meta.NoKindMatchError{}
}

func TestNotServed(t *testing.T) {
	t.Run("When a cluster isn't a management cluster, it should say what to do", func(t *testing.T) {
		_, err := readCosts(t.Context(), withoutAutoNode{}, time.Time{})
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("doesn't serve CapacityAccounts, so it isn't a management cluster with AutoNode; choose another with --context")))
	})
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	costs := []accountCost{{Account: hostile, Problems: []string{hostile}, Report: &cost.Report{
		Rows: []cost.Row{{Key: cost.Key{Cluster: hostile, NodePool: hostile}}}, Commitments: []cost.CommitmentUse{{Name: hostile}},
	}}}
	printertest.Harmless(t, "cost", func(out io.Writer) error { return tabulate(out, costs, groups["nodepool"]) })
}
