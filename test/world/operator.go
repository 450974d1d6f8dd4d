// SPDX-License-Identifier: Apache-2.0

package world

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/autonode-io/autonode/test/world/process"
)

// operatorUser is the user that the operator's manifests bind to its roles.
const operatorUser = "system:serviceaccount:" + OperatorNamespace + ":" + operatorDeployment

// OperatorConfig of StartOperator.
type OperatorConfig struct {
	// Name of the process, and of its log: a restarted process appends to it.
	Name string
	// Management is where to find the management cluster's API server, such as a proxy with a certificate of that cluster's
	// authority. Empty: where it is.
	Management string
	// Args come after the one that names the management cluster.
	Args []string
}

// StartOperator runs an operator as a process of this machine, beside the one in the management cluster or instead of
// it, with the same permissions. A test can suspend and kill it at any moment. Nothing restarts it.
func (w *World) StartOperator(cfg OperatorConfig) (*process.Process, error) {
	if w.autonode == nil {
		return nil, errors.New("this world has no operator: it has no source to make one from")
	}
	kubeconfig, err := w.management.KubeconfigAt(cfg.Management, operatorUser)
	if err != nil {
		return nil, err
	}
	path := w.dir.kubeconfig(cfg.Name)
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of %s: %w", cfg.Name, err)
	}
	operator, err := w.processes.Start(process.Spec{
		Name:  cfg.Name,
		Path:  filepath.Join(w.autonode.bin, operatorProgram),
		Args:  append([]string{"--kubeconfig=" + path, "--guest-networks=" + worldNetwork, "--registry-networks=" + worldNetwork, "--karpenter-image=" + w.autonode.defaultImage, "--metrics-bind-address=0", "--health-probe-bind-address=0"}, cfg.Args...),
		Grace: podGrace,
	})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.operatorLogs, operator.LogFile) {
		w.operatorLogs = append(w.operatorLogs, operator.LogFile)
	}
	return operator, nil
}
