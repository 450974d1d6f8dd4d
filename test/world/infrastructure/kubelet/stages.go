// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	_ "embed"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kwok/kustomize/stage/node/fast"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/apis/v1alpha1"
	"sigs.k8s.io/kwok/pkg/config/resources"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
	"sigs.k8s.io/yaml"
)

// statusInterval is how often a kubelet writes its Node's status, by its own default. So what others write there, such as the
// controller-manager when it hasn't heard of the kubelet for a while, can be seen for that long.
const statusInterval = 10 * time.Second

// nodeStages make a new Node ready at once, keep its conditions fresh, and make it ready again when others said it isn't.
func nodeStages() (resources.Getter[lifecycle.Lifecycle], error) {
	join, err := decode(fast.DefaultNodeInit)
	if err != nil {
		return nil, err
	}
	recovery := join.DeepCopy()
	recovery.Name = "node-recovery"
	requirePhase(join, v1alpha1.SelectorOpNotIn)
	requirePhase(recovery, v1alpha1.SelectorOpIn)
	delay := statusInterval.Milliseconds()
	recovery.Spec.Delay = &v1alpha1.StageDelay{DurationMilliseconds: &delay}
	refresh, err := decode(heartbeat.DefaultNodeHeartbeatWithLease)
	if err != nil {
		return nil, err
	}
	return compile(join, recovery, refresh)
}

// requirePhase has a stage look at whether the kubelet has registered its Node already.
func requirePhase(stage *v1alpha1.Stage, operator v1alpha1.SelectorOperator) {
	stage.Spec.Selector.MatchExpressions = append(stage.Spec.Selector.MatchExpressions, v1alpha1.MatchExpression{
		JQ: &v1alpha1.SelectorJQ{Key: ".status.phase", Operator: operator, Values: []string{string(corev1.NodeRunning)}},
	})
}

// What kwok's own fast stages lack: they look at a Pod once, and all Pods are well and end at once.
var (
	//go:embed pod-ready-again.yaml
	podReadyAgain string
	//go:embed pod-unready.yaml
	podUnready string
	//go:embed pod-delete-late.yaml
	podDeleteLate string
)

// How a Pod requests another fate than to be ready at once and to end at once. Karpenter's test suite does.
const (
	podStageLabel      = `.metadata.labels["kwok.x-k8s.io/stage"]`
	podUnhealthy       = "unhealthy"
	podDeleteDelayNote = `.metadata.annotations["pod-delete.stage.kwok.x-k8s.io/delay"]`
)

// podStages make a Pod ready at once and again after an outage, complete one that a Job owns, and end one that is deleted.
func podStages() (resources.Getter[lifecycle.Lifecycle], error) {
	var all []*v1alpha1.Stage
	for _, document := range []struct {
		stage string
		but   *v1alpha1.SelectorJQ
	}{
		{podfast.DefaultPodReady, &v1alpha1.SelectorJQ{Key: podStageLabel, Operator: v1alpha1.SelectorOpNotIn, Values: []string{podUnhealthy}}},
		{podReadyAgain, &v1alpha1.SelectorJQ{Key: podStageLabel, Operator: v1alpha1.SelectorOpNotIn, Values: []string{podUnhealthy}}},
		{podUnready, nil},
		{podfast.DefaultPodComplete, nil},
		{podfast.DefaultPodDelete, &v1alpha1.SelectorJQ{Key: podDeleteDelayNote, Operator: v1alpha1.SelectorOpDoesNotExist}},
		{podDeleteLate, nil},
	} {
		stage, err := decode(document.stage)
		if err != nil {
			return nil, err
		}
		if document.but != nil {
			stage.Spec.Selector.MatchExpressions = append(stage.Spec.Selector.MatchExpressions, v1alpha1.MatchExpression{JQ: document.but})
		}
		all = append(all, stage)
	}
	return compile(all...)
}

func decode(document string) (*v1alpha1.Stage, error) {
	stage := &v1alpha1.Stage{}
	if err := yaml.UnmarshalStrict([]byte(document), stage); err != nil {
		return nil, fmt.Errorf("decoding a kwok stage: %w", err)
	}
	return stage, nil
}

func compile(stages ...*v1alpha1.Stage) (resources.Getter[lifecycle.Lifecycle], error) {
	all := make([]*internalversion.Stage, 0, len(stages))
	for _, stage := range stages {
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
