// SPDX-License-Identifier: Apache-2.0

// Command autonode is the command line of cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/autonode-io/autonode/cli"
	"github.com/autonode-io/autonode/cli/install"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/operator"
)

var (
	// version is stamped when the program is built.
	version string
	// operatorImage is stamped when a release is built.
	operatorImage string
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// client-go logs what a cluster's API server answers.
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&message.Writer{To: os.Stderr}))))
	checks := install.Operator{CheckArguments: operator.CheckArguments, CheckSettings: operator.CheckSettings}
	if err := cli.NewCommand(os.Args[0], version, operatorImage, checks).ExecuteContext(ctx); err != nil {
		printer.Error(os.Stderr, err)
		os.Exit(1)
	}
}
