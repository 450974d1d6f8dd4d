// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"os"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

func hostedClusterList() *v1beta1.HostedClusterList     { return &v1beta1.HostedClusterList{} }
func componentList() *v1beta1.ControlPlaneComponentList { return &v1beta1.ControlPlaneComponentList{} }
func nodeClassList() *v1alpha1.ClusterAPINodeClassList  { return &v1alpha1.ClusterAPINodeClassList{} }

// tail returns the last lines of a file, or why it can't be read.
func tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	split := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return string(bytes.Join(split[max(0, len(split)-lines):], []byte("\n")))
}
