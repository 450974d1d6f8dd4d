// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"testing"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func TestWithAnswers(t *testing.T) {
	lost, forbidden := errors.New("connection refused"), apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
	for name, c := range map[string]struct {
		verbosity int
		err       error
		want      int
	}{
		"When the guest doesn't answer, it should log nothing":                        {0, lost, 0},
		"When the guest doesn't answer and details are logged, it should log one":     {1, lost, 1},
		"When the guest's API server refuses a watch, it should log that as an error": {0, forbidden, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			logger := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{Verbosity: c.verbosity})
			ctx := withAnswers(log.IntoContext(t.Context(), logger))
			reflector := toolscache.NewReflectorWithOptions(&toolscache.ListWatch{}, nil, nil, toolscache.ReflectorOptions{})
			toolscache.DefaultWatchErrorHandler(ctx, reflector, c.err)
			NewWithT(t).Expect(lines).To(HaveLen(c.want))
		})
	}
}
