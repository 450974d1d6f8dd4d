// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/conformance"
)

func TestReadSizes(t *testing.T) {
	t.Run("When sizes are numbers of pods, and of nodes, it should read them", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(readSizes([]string{"3", " 500", "1000/157"})).To(Equal([]conformance.Size{{Pods: 3, Nodes: 3}, {Pods: 500, Nodes: 500}, {Pods: 1000, Nodes: 157}}))
	})
	for text, want := range map[string]string{
		"0": "from 1 to 1000", "-3": "from 1 to 1000", "1001": "from 1 to 1000", "many": "a number of pods", "1.5": "a number of pods", "": "a number of pods",
		"3/": "a number of pods", "3/0": "from 1 to 3 nodes", "3/4": "from 1 to 3 nodes", "100/12": "at most 8 pods fit",
	} {
		t.Run("When a size is "+text+", it should say what is allowed", func(t *testing.T) {
			g := NewWithT(t)
			_, err := readSizes([]string{"3", text})
			g.Expect(err).To(MatchError(ContainSubstring(want)))
		})
	}
	t.Run("When a size is named twice, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		_, err := readSizes([]string{"3", "3"})
		g.Expect(err).To(MatchError(ContainSubstring("twice")))
	})
}

func TestGuests(t *testing.T) {
	for _, guests := range []string{"0", "-1", "21"} {
		t.Run("When the number of guests is "+guests+", it should say what is allowed", func(t *testing.T) {
			g := NewWithT(t)
			cmd := newConformanceCommand()
			cmd.SetArgs([]string{"--guests", guests})
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			g.Expect(cmd.ExecuteContext(t.Context())).To(MatchError(ContainSubstring("from 1 to 20")))
		})
	}
}

func TestProviders(t *testing.T) {
	both := []string{conformance.ClusterAPI, conformance.Kwok}
	for _, tc := range []struct {
		name, provider string
		measures       bool
		want           []string
		problem        string
	}{
		{name: "When no provider is named, it should be both", want: both},
		{name: "When no provider is named to a measurement, it should be both and a MachineDeployment", measures: true,
			want: []string{conformance.ClusterAPI, conformance.MachineDeployment, conformance.Kwok}},
		{name: "When one is named, it should be that", provider: "bare", want: []string{conformance.Bare}},
		{name: "When bare is named to a measurement, it should say what is allowed", provider: "bare", measures: true, problem: "there are [clusterapi machinedeployment kwok]"},
		{name: "When one is unknown, it should say what is allowed", provider: "aws", problem: "there are [clusterapi kwok bare]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			got, err := chooseProviders(tc.provider, tc.measures)
			if tc.problem != "" {
				g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(tc.want))
		})
	}
}
