// SPDX-License-Identifier: Apache-2.0

// The program karpenter-clusterapi gives one guest cluster nodes by making Machines in the management cluster.
package main

import (
	"errors"
	"fmt"
	"os"
	_ "time/tzdata" // the image has no time zones, and a maintenance window names one

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/autonode-io/autonode/cmd/about"
	"github.com/autonode-io/autonode/karpenter"
)

// version is stamped when the program is built.
var version string

func main() {
	info := about.Of("karpenter-clusterapi", version)
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
