// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	_ "embed"
	"fmt"

	"sigs.k8s.io/kwok/kustomize/stage/node/fast"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/apis/v1alpha1"
	"sigs.k8s.io/kwok/pkg/config/resources"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
	"sigs.k8s.io/yaml"
)

// nodeStages make a new Node ready and keep its conditions fresh.
func nodeStages() (resources.Getter[lifecycle.Lifecycle], error) {
	return stages(fast.DefaultNodeInit, heartbeat.DefaultNodeHeartbeatWithLease)
}

// podReadyAgain is what kwok's own stages lack: they look at a Pod once.
//
//go:embed pod-ready-again.yaml
var podReadyAgain string

// podStages make a Pod ready at once and again after an outage, complete one that a Job owns, and end one that is deleted.
func podStages() (resources.Getter[lifecycle.Lifecycle], error) {
	return stages(podfast.DefaultPodReady, podReadyAgain, podfast.DefaultPodComplete, podfast.DefaultPodDelete)
}

func stages(documents ...string) (resources.Getter[lifecycle.Lifecycle], error) {
	all := make([]*internalversion.Stage, 0, len(documents))
	for _, document := range documents {
		stage := &v1alpha1.Stage{}
		if err := yaml.UnmarshalStrict([]byte(document), stage); err != nil {
			return nil, fmt.Errorf("decoding a kwok stage: %w", err)
		}
		v1alpha1.SetObjectDefaults_Stage(stage)
		internal, err := internalversion.ConvertToInternalStage(stage)
		if err != nil {
			return nil, fmt.Errorf("converting kwok's stage %s: %w", stage.Name, err)
		}
		all = append(all, internal)
	}
	compiled, err := lifecycle.NewLifecycle(all)
	if err != nil {
		return nil, fmt.Errorf("compiling kwok's stages: %w", err)
	}
	return resources.NewStaticGetter(compiled), nil
}
