// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"io"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	hostedCluster := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: hostile, Name: hostile},
		Spec: v1beta1.HostedClusterSpec{InfraID: hostile, Release: v1beta1.Release{Image: hostile}}}
	for name, options := range map[string]CreateOptions{"create": {}, "create -o name": {Output: "name"}, "create -o yaml": {Output: "yaml", Shared: true}} {
		printertest.Harmless(t, "hosted-cluster "+name, func(out io.Writer) error { return options.print(out, hostedCluster) })
	}
}
