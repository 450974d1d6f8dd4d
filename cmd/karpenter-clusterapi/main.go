// SPDX-License-Identifier: Apache-2.0

// The program karpenter-clusterapi gives one guest cluster nodes by making Machines in the management cluster.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	_ "time/tzdata" // the image has no time zones, and a maintenance window names one

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/autonode-io/autonode/cmd/about"
	"github.com/autonode-io/autonode/karpenter"
)

// version is stamped when the program is built.
var version string

// garbage is the heap's growth between two garbage collections in percent of what is in use, unless GOGC sets it. A burst leaves
// as much garbage as Go's default lets it, and that would be a third of the memory that Karpenter needs at its peak.
const garbage = 60

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	info := about.New("karpenter-clusterapi", version)
	if about.Requested(os.Args[1:]) {
		fmt.Print(info)
		return
	}
	if err := karpenter.Run(ctrl.SetupSignalHandler(), info.Version); err != nil {
		fmt.Fprintln(os.Stderr, "karpenter-clusterapi:", err)
		if errors.Is(err, karpenter.ErrUsage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}
