// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestThresholds(t *testing.T) {
	for name, c := range map[string]struct {
		probe   corev1.Probe
		results string // + and -
		want    string // decisions: +, - or .
	}{
		"When failures reach the threshold, it should decide":        {corev1.Probe{FailureThreshold: 3}, "--+---", "..+..-"},
		"When more successes are needed, it should wait for them":    {corev1.Probe{SuccessThreshold: 2, FailureThreshold: 1}, "+-++", ".-.+"},
		"When a result holds, every further result should repeat it": {corev1.Probe{FailureThreshold: 1}, "++--", "++--"},
	} {
		t.Run(name, func(t *testing.T) {
			var count thresholds
			got := ""
			for _, result := range c.results {
				decided, good := count.add(result == '+', &c.probe)
				switch {
				case !decided:
					got += "."
				case good:
					got += "+"
				default:
					got += "-"
				}
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
