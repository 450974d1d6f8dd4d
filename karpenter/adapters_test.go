// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"testing"

	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
)

func TestIsReplacement(t *testing.T) {
	command := &disruption.Command{Replacements: []*disruption.Replacement{{Name: "general-2"}, {Name: "general-3"}}}
	queue := &disruption.Queue{ProviderIDToCommand: map[string]*disruption.Command{"cloud://1": command, "cloud://2": {}}}
	for name, want := range map[string]bool{"general-1": false, "general-2": true, "general-3": true, "": false} {
		t.Run("When a NodeClaim is named "+name+", it should be one that replaces a running node only if a command names it", func(t *testing.T) {
			if got := isReplacement(queue, name); got != want {
				t.Errorf("got %t, want %t", got, want)
			}
		})
	}
}
