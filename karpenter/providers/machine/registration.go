// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kjson "sigs.k8s.io/json"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/karpenter/providers/kubeadm"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
)

// registration has the labels, taints and kubelet arguments that a node registers with.
type registration struct {
	taints []corev1.Taint
	labels map[string]string
	// kubeletArgs by flag name, without dashes.
	kubeletArgs map[string]string
	// kubeletConfig are the fields of a KubeletConfiguration that have no flag here.
	kubeletConfig map[string]any
}

func registrationOf(plan Plan) registration {
	// The unregistered taint keeps pods away until Karpenter has set the node's own labels and taints.
	taints := karpscheduling.Taints{karpv1.UnregisteredNoExecuteTaint}.
		Merge(plan.NodeClaim.Spec.Taints).
		Merge(plan.NodeClaim.Spec.StartupTaints).
		Merge(plan.Template.Taints)

	labels := map[string]string{}
	for key, value := range plan.NodeLabels {
		if kubeletMaySet(key) {
			labels[key] = value
		}
	}

	config := map[string]any{}
	if plan.Kubelet != nil {
		for field, value := range plan.Kubelet.Other {
			var decoded any
			if kjson.UnmarshalCaseSensitivePreserveInts(value.Raw, &decoded) == nil { // the node class's conditions report it
				config[field] = decoded
			}
		}
	}
	return registration{taints: taints, labels: labels, kubeletArgs: kubeletArgs(plan), kubeletConfig: config}
}

// Flags of the kubelet. They are deprecated for its configuration file, and every kubelet has them still: each bootstrap format can
// carry a flag, and it replaces the value of the platform's file.
const (
	flagMaxPods        = "max-pods"
	flagKubeReserved   = "kube-reserved"
	flagSystemReserved = "system-reserved"
	flagEvictionHard   = "eviction-hard"
)

// kubeletArgs are the kubelet's flags of a plan, by name.
func kubeletArgs(plan Plan) map[string]string {
	args := map[string]string{}
	if plan.MaxPods > 0 {
		args[flagMaxPods] = strconv.Itoa(int(plan.MaxPods))
	}
	settings := plan.Kubelet
	if settings == nil {
		return args
	}
	if len(settings.ClusterDNS) > 0 {
		args["cluster-dns"] = strings.Join(settings.ClusterDNS, ",")
	}
	setNumber(args, "pods-per-core", settings.PodsPerCore)
	setPairs(args, flagKubeReserved, "=", settings.KubeReserved)
	setPairs(args, flagSystemReserved, "=", settings.SystemReserved)
	setPairs(args, flagEvictionHard, "<", settings.EvictionHard)
	setPairs(args, "eviction-soft", "<", settings.EvictionSoft)
	setPairs(args, "eviction-soft-grace-period", "=", settings.EvictionSoftGracePeriod)
	setNumber(args, "eviction-max-pod-grace-period", settings.EvictionMaxPodGracePeriod)
	if high, low, ok := settings.ImageGCThresholds(); ok {
		// Both, whichever is set: no kubelet starts with a low threshold that isn't below the high one, and the platform's file may have any.
		setNumber(args, "image-gc-high-threshold", &high)
		setNumber(args, "image-gc-low-threshold", &low)
	}
	if settings.CPUCFSQuota != nil {
		args["cpu-cfs-quota"] = strconv.FormatBool(*settings.CPUCFSQuota)
	}
	setNumber(args, "pod-max-pids", settings.PodPidsLimit)
	return args
}

func setNumber[N int32 | int64](args map[string]string, flag string, value *N) {
	if value != nil {
		args[flag] = strconv.FormatInt(int64(*value), 10)
	}
}

// setPairs writes a map in the kubelet's format, sorted, so that one plan always renders the same.
func setPairs[V ~string](args map[string]string, flag, operator string, values map[string]V) {
	if len(values) == 0 {
		return
	}
	pairs := make([]string, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		pairs = append(pairs, key+operator+string(values[key]))
	}
	args[flag] = strings.Join(pairs, ",")
}

// KnownBootstrap reports whether the provider writes the registration into a bootstrap kind (or its template's kind).
func KnownBootstrap(group, kind string) bool {
	return group == kubeadm.Kind.Group && strings.TrimSuffix(kind, "Template") == kubeadm.Kind.Kind
}

// register applies a source's patches to the infrastructure machine, and writes the registration into the bootstrap config: by itself if it
// supports the kind, and by the node class's patches. Nodes of other kinds register as their template declares, and package registration
// taints them.
func register(objects *Objects, plan Plan) error {
	node, machine, config := registrationOf(plan), objects.Infrastructure, objects.Bootstrap
	where := cmp.Or(plan.Template.PatchesFrom(), "annotation "+v1alpha1.InfrastructurePatchesAnnotation)
	if err := applyPatches(machine, where, plan.Template.Patches, plan, node); err != nil {
		return fmt.Errorf("patching %s %s: %w", machine.GetKind(), machine.GetName(), err)
	}
	if config == nil {
		return nil
	}
	patches, err := bootstrapPatches(plan.BootstrapPatches, config.GroupVersionKind().GroupKind())
	if err == nil && (KnownBootstrap(config.GroupVersionKind().Group, config.GetKind()) || patches.Refers(taintVariables...)) {
		// A node that registers with all taints has them from the start. Karpenter core would add them once more when it registers
		// the node, and with them a startup taint that its agent has removed by then; the label prevents that.
		// https://github.com/kubernetes-sigs/karpenter/issues/1772
		labelled, before := node, config.DeepCopy()
		labelled.labels = maps.Clone(node.labels)
		labelled.labels[karpv1.NodeDoNotSyncTaintsLabelKey] = "true"
		err = registerWith(config, patches, plan, labelled)
		if err == nil && registersWith(config, node.taints) {
			return nil
		}
		config.Object = before.Object
	}
	if err == nil {
		err = registerWith(config, patches, plan, node)
	}
	if err != nil {
		return fmt.Errorf("writing node registration into %s %s: %w", config.GetKind(), config.GetName(), err)
	}
	return nil
}

// registerWith writes a registration into a bootstrap config of a known kind, and applies patches. The error may be a *PatchError.
func registerWith(config *unstructured.Unstructured, patches patch.List, plan Plan, node registration) error {
	if KnownBootstrap(config.GroupVersionKind().Group, config.GetKind()) {
		if err := registerKubeadm(config, node); err != nil {
			return err
		}
	}
	return applyPatches(config, whereBootstrap(config.GroupVersionKind().GroupKind()), patches, plan, node)
}

func applyPatches(object *unstructured.Unstructured, where string, list patch.List, plan Plan, node registration) error {
	if list.IsEmpty() {
		return nil
	}
	values, err := variables(plan, node)
	if err != nil {
		return err
	}
	if err := list.Apply(object.Object, values); err != nil {
		return &PatchError{Where: where, err: err}
	}
	return nil
}

// variables of patches.
func variables(plan Plan, node registration) (patch.Values, error) {
	taints, err := encodeTaints(node.taints)
	if err != nil {
		return patch.Values{}, err
	}
	taintList := make([]any, 0, len(node.taints))
	for i := range node.taints {
		taintList = append(taintList, node.taints[i].ToString())
	}
	labels := map[string]any{}
	for key, value := range node.labels {
		labels[key] = value
	}
	labelList := []any{}
	labelFlag := mergeNodeLabels("", node.labels)
	if labelFlag != "" {
		for pair := range strings.SplitSeq(labelFlag, ",") {
			labelList = append(labelList, pair)
		}
	}
	args, argList := map[string]any{}, []any{}
	for _, name := range slices.Sorted(maps.Keys(node.kubeletArgs)) {
		args[name] = node.kubeletArgs[name]
		argList = append(argList, name+"="+node.kubeletArgs[name])
	}
	return patch.Values{
		Variables: map[string]any{
			patch.Taints:             taints,
			patch.TaintList:          taintList,
			patch.TaintFlag:          joined(taintList),
			patch.Labels:             labels,
			patch.LabelList:          labelList,
			patch.LabelFlag:          labelFlag,
			patch.KubeletArgs:        args,
			patch.KubeletArgList:     argList,
			patch.KubeletConfig:      node.kubeletConfig,
			patch.KubeReservedFlag:   node.kubeletArgs[flagKubeReserved],
			patch.SystemReservedFlag: node.kubeletArgs[flagSystemReserved],
			patch.EvictionHardFlag:   node.kubeletArgs[flagEvictionHard],
			patch.MaxPods:            int64(plan.MaxPods),
			patch.Version:            strings.TrimPrefix(plan.Version, "v"),
			patch.InstanceType:       plan.NodeLabels[corev1.LabelInstanceTypeStable],
			patch.Zone:               plan.NodeLabels[corev1.LabelTopologyZone],
			patch.CapacityType:       plan.NodeLabels[karpv1.CapacityTypeLabelKey],
			patch.ReservationID:      plan.NodeLabels[v1alpha1.ReservationIDLabel],
			patch.FailureDomain:      plan.FailureDomain,
			patch.NodeClaim:          plan.NodeClaim.Name,
		},
		Image: func(image patch.Image) (string, bool) {
			if plan.example {
				return image.String(), true
			}
			return plan.Images.Get(image.Infrastructure, image.Variant)
		},
	}, nil
}

func joined(list []any) string {
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i], _ = item.(string)
	}
	return strings.Join(texts, ",")
}

// registersWith reports whether a bootstrap config still has all these taints: a patch may replace those that were written,
// or write them under a condition. Of other kinds than kubeadm's it checks only whether the config mentions the taints' keys.
func registersWith(config *unstructured.Unstructured, taints []corev1.Taint) bool {
	if KnownBootstrap(config.GroupVersionKind().Group, config.GetKind()) {
		node, err := readKubeadm(config)
		return err == nil && node.registersWith(taints)
	}
	text, err := json.Marshal(config.Object["spec"])
	return err == nil && !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return !bytes.Contains(text, []byte(t.Key)) })
}

// kubeadmNode has the settings that a KubeadmConfig registers its node with.
type kubeadmNode struct {
	fields map[string]any
	taints karpscheduling.Taints
	args   map[string]string
}

// Paths and flags of a KubeadmConfig's node registration.
var nodeRegistration = []string{"spec", "joinConfiguration", "nodeRegistration"}

const (
	kubeletExtraArgs   = "kubeletExtraArgs"
	nodeLabels         = "node-labels"
	registerWithTaints = "register-with-taints"
)

func readKubeadm(config *unstructured.Unstructured) (*kubeadmNode, error) {
	fields, _, err := unstructured.NestedMap(config.Object, nodeRegistration...)
	if err != nil {
		return nil, err
	}
	node := &kubeadmNode{fields: fields}
	if node.fields == nil {
		node.fields = map[string]any{}
	}
	if node.taints, err = kubelet.Taints(node.fields["taints"]); err != nil {
		return nil, fmt.Errorf("spec.joinConfiguration.nodeRegistration.taints: %w", err)
	}
	if node.args, err = kubelet.Args(node.fields[kubeletExtraArgs]); err != nil {
		return nil, fmt.Errorf("spec.joinConfiguration.nodeRegistration.kubeletExtraArgs: %w", err)
	}
	return node, nil
}

func (n *kubeadmNode) write(config *unstructured.Unstructured) (err error) {
	if n.fields["taints"], err = encodeTaints(n.taints); err != nil {
		return err
	}
	if len(n.args) > 0 {
		_, asMap := n.fields[kubeletExtraArgs].(map[string]any)
		n.fields[kubeletExtraArgs] = encodeArgs(n.args, asMap || config.GroupVersionKind().Version == "v1beta1")
	}
	return unstructured.SetNestedMap(config.Object, n.fields, nodeRegistration...)
}

// registersWith reports whether the node registers with all these taints. The kubelet's flag replaces the field.
func (n *kubeadmNode) registersWith(taints []corev1.Taint) bool {
	if flag, replaced := n.args[registerWithTaints]; replaced {
		list := strings.Split(flag, ",")
		return !slices.ContainsFunc(taints, func(wanted corev1.Taint) bool { return !slices.Contains(list, wanted.ToString()) })
	}
	return !slices.ContainsFunc(taints, func(wanted corev1.Taint) bool {
		return !slices.ContainsFunc(n.taints, func(taint corev1.Taint) bool { return taint.MatchTaint(&wanted) })
	})
}

// registerKubeadm keeps the template's taints. It also keeps the template's labels and kubelet arguments that the claim
// doesn't set.
func registerKubeadm(config *unstructured.Unstructured, wanted registration) error {
	node, err := readKubeadm(config)
	if err != nil {
		return err
	}
	node.taints = node.taints.Merge(wanted.taints)
	if flag, replaces := node.args[registerWithTaints]; replaces {
		// The bootstrap provider adds Cluster API's taint to the field only.
		node.args[registerWithTaints] = mergeTaints(flag, append(slices.Clip(wanted.taints), clusterv1.NodeUninitializedTaint))
	}
	maps.Copy(node.args, wanted.kubeletArgs)
	if labels := mergeNodeLabels(node.args[nodeLabels], wanted.labels); labels != "" {
		node.args[nodeLabels] = labels
	}
	if err := writeDropIn(config, node.args, wanted.kubeletConfig); err != nil {
		return err
	}
	return node.write(config)
}

// writeDropIn adds a file with fields of the kubelet's configuration, which replace those of its other files: the last one wins.
func writeDropIn(config *unstructured.Unstructured, args map[string]string, fields map[string]any) error {
	if len(fields) == 0 {
		return nil
	}
	content := maps.Clone(fields)
	content["apiVersion"], content["kind"] = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	raw, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encoding spec.kubelet: %w", err)
	}
	files, _, err := unstructured.NestedSlice(config.Object, "spec", "files")
	if err != nil {
		return fmt.Errorf("spec.files: %w", err)
	}
	const directory = "config-dir"
	args[directory] = cmp.Or(args[directory], "/etc/kubernetes/kubelet.conf.d")
	return unstructured.SetNestedSlice(config.Object, append(files, map[string]any{
		"path": path.Join(args[directory], "zz-autonode.conf"), "owner": "root:root", "permissions": "0644",
		// cloud-init would render what looks like a template of its own.
		"encoding": "base64", "content": base64.StdEncoding.EncodeToString(raw),
	}), "spec", "files")
}

func encodeTaints(taints []corev1.Taint) ([]any, error) {
	encoded := make([]any, 0, len(taints))
	for i := range taints {
		taint, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&taints[i])
		if err != nil {
			return nil, fmt.Errorf("encoding taint %s: %w", taints[i].Key, err)
		}
		encoded = append(encoded, taint)
	}
	return encoded, nil
}

func encodeArgs(args map[string]string, asMap bool) any {
	if asMap {
		encoded := map[string]any{}
		for name, value := range args {
			encoded[name] = value
		}
		return encoded
	}
	encoded := make([]any, 0, len(args))
	for _, name := range slices.Sorted(maps.Keys(args)) {
		encoded = append(encoded, map[string]any{"name": name, "value": args[name]})
	}
	return encoded
}

// mergeTaints adds taints to the kubelet's register-with-taints flag; ours win, the rest stays. A kubelet rejects two of a key and effect.
func mergeTaints(flag string, taints []corev1.Taint) string {
	var list []string
	for part := range strings.SplitSeq(flag, ",") {
		part = strings.TrimSpace(part)
		rest, effect, _ := strings.Cut(part, ":")
		key, _, _ := strings.Cut(rest, "=")
		if part != "" && !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == key && string(t.Effect) == effect }) {
			list = append(list, part)
		}
	}
	for i := range taints {
		list = append(list, taints[i].ToString())
	}
	return strings.Join(list, ",")
}

// mergeNodeLabels adds labels to the kubelet's node-labels flag; ours win, the rest stays.
func mergeNodeLabels(flag string, labels map[string]string) string {
	merged := map[string]string{}
	for pair := range strings.SplitSeq(flag, ",") {
		if key, value, _ := strings.Cut(strings.TrimSpace(pair), "="); key != "" {
			merged[key] = value
		}
	}
	maps.Copy(merged, labels)
	pairs := make([]string, 0, len(merged))
	for _, key := range slices.Sorted(maps.Keys(merged)) {
		pairs = append(pairs, key+"="+merged[key])
	}
	return strings.Join(pairs, ",")
}

// kubeletMaySet reports whether a kubelet accepts a label in its node-labels flag and the NodeRestriction admission
// plugin admits it. Rule: k8s.io/kubelet/pkg/apis.IsKubeletLabel. The labels that every kubelet sets itself are left
// out.
func kubeletMaySet(key string) bool {
	switch key {
	case corev1.LabelInstanceTypeStable, corev1.LabelInstanceType,
		corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
		corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion:
		return true
	case corev1.LabelHostname, corev1.LabelArchStable, corev1.LabelOSStable, "beta.kubernetes.io/arch", "beta.kubernetes.io/os":
		return false
	case karpv1.NodeRegisteredLabelKey, karpv1.NodeInitializedLabelKey:
		// Karpenter's own statements about a node that has joined.
		return false
	}
	domain, _, qualified := strings.Cut(key, "/")
	if !qualified {
		return true
	}
	within := func(parent string) bool { return domain == parent || strings.HasSuffix(domain, "."+parent) }
	reserved := within("kubernetes.io") || within("k8s.io")
	return !reserved || within("kubelet.kubernetes.io") || within("node.kubernetes.io")
}
