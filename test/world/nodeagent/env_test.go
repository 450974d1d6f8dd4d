// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// objects is a reader of a map.
type objects map[string]map[string]string

func (o objects) secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	data, ok := o["secret/"+name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
	}
	secret := &corev1.Secret{Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret, nil
}

func (o objects) configMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	data, ok := o["configmap/"+name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return &corev1.ConfigMap{Data: data}, nil
}

func TestExpand(t *testing.T) {
	variables := map[string]string{"A": "a", "EMPTY": "", "REF": "$(A)"}
	for in, want := range map[string]string{
		"":             "",
		"plain":        "plain",
		"$(A)":         "a",
		"x$(A)y$(A)":   "xaya",
		"$$(A)":        "$(A)",
		"$$$(A)":       "$a",
		"$(EMPTY)|":    "|",
		"$(UNKNOWN)":   "$(UNKNOWN)",
		"$(A":          "$(A",
		"$A ${A} $":    "$A ${A} $",
		"$(REF)":       "$(A)", // once, not again
		"$(A)$":        "a$",
		"cost: 5$ $(A": "cost: 5$ $(A",
	} {
		t.Run("When it is "+in+", it should be "+want, func(t *testing.T) {
			if got := expand(in, variables); got != want {
				t.Errorf("expand(%q) = %q, want %q", in, got, want)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u", Labels: map[string]string{"b": "2", "a": "1"}, Annotations: map[string]string{"x.io/y": "z"}},
		Spec:       corev1.PodSpec{NodeName: "node", ServiceAccountName: "sa"},
	}
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
	source := objects{"secret/s": {"k": "from secret"}, "configmap/c": {"k": "from config map", "L": "l"}}
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	secretKey := func(name, key string, optional bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}
	}
	amount := func(name, divisor string) *corev1.EnvVarSource {
		ref := &corev1.ResourceFieldSelector{Resource: name}
		if divisor != "" {
			ref.Divisor = resource.MustParse(divisor)
		}
		return &corev1.EnvVarSource{ResourceFieldRef: ref}
	}
	for name, c := range map[string]struct {
		env     []corev1.EnvVar
		from    []corev1.EnvFromSource
		want    map[string]string
		wantErr string
	}{
		"When variables refer to earlier ones, they should be expanded": {
			env:  []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "$(A)$(C)$(CLUSTER)"}, {Name: "C", Value: "c"}},
			want: map[string]string{"A": "a", "B": "a$(C)cluster", "C": "c"},
		},
		"When fields are referred to, they should be the pod's": {
			env: []corev1.EnvVar{
				{Name: "NAME", ValueFrom: field("metadata.name")}, {Name: "NAMESPACE", ValueFrom: field("metadata.namespace")},
				{Name: "NODE", ValueFrom: field("spec.nodeName")}, {Name: "IP", ValueFrom: field("status.podIP")},
				{Name: "LABEL", ValueFrom: field("metadata.labels['a']")}, {Name: "NOTE", ValueFrom: field("metadata.annotations['x.io/y']")},
				{Name: "ACCOUNT", ValueFrom: field("spec.serviceAccountName")}, {Name: "UID", ValueFrom: field("metadata.uid")},
			},
			want: map[string]string{"NAME": "p", "NAMESPACE": "n", "NODE": "node", "IP": "127.0.0.1", "LABEL": "1", "NOTE": "z", "ACCOUNT": "sa", "UID": "u"},
		},
		"When resources are referred to, they should be counted in the divisor, rounded up": {
			env: []corev1.EnvVar{
				{Name: "CPU", ValueFrom: amount("limits.cpu", "")}, {Name: "MILLI", ValueFrom: amount("limits.cpu", "1m")},
				{Name: "MEMORY", ValueFrom: amount("limits.memory", "1Mi")}, {Name: "REQUEST", ValueFrom: amount("requests.cpu", "1m")},
			},
			want: map[string]string{"CPU": "2", "MILLI": "1500", "MEMORY": "4096", "REQUEST": "0"},
		},
		"When whole objects are given, their keys should be variables, and env should win": {
			from: []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}},
				{Prefix: "S_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Optional: ptr.To(true)}},
			},
			env:  []corev1.EnvVar{{Name: "L", Value: "own"}},
			want: map[string]string{"k": "from config map", "S_k": "from secret", "L": "own"},
		},
		"When a secret's key is missing, it should say which": {
			env: []corev1.EnvVar{{Name: "A", ValueFrom: secretKey("s", "no", false)}}, wantErr: "couldn't find key no in Secret n/s",
		},
		"When a secret is missing, it should say which": {
			env: []corev1.EnvVar{{Name: "A", ValueFrom: secretKey("none", "k", false)}}, wantErr: `secret "none" not found`,
		},
		"When what is missing is optional, the variable should be left out": {
			env:  []corev1.EnvVar{{Name: "A", ValueFrom: secretKey("none", "k", true)}, {Name: "B", ValueFrom: secretKey("s", "no", true)}},
			want: map[string]string{},
		},
		"When a field doesn't exist, it should say which": {
			env: []corev1.EnvVar{{Name: "A", ValueFrom: field("status.color")}}, wantErr: "unsupported fieldPath: status.color",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := environment{
				objects: source, pod: pod, cluster: map[string]string{"CLUSTER": "cluster"},
				allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")},
				container:   &corev1.Container{Env: c.env, EnvFrom: c.from, Resources: corev1.ResourceRequirements{Limits: limits}},
			}.build(t.Context())
			if c.wantErr != "" {
				if err == nil || err.Error() != c.wantErr {
					t.Errorf("got error %v, want %s", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("When all labels are referred to, they should be sorted lines", func(t *testing.T) {
		if got, err := podField(pod, "metadata.labels"); err != nil || got != "a=\"1\"\nb=\"2\"" {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestBackoff(t *testing.T) {
	b := backoff{base: 10 * time.Second, maximum: 5 * time.Minute, reset: 10 * time.Minute}
	for i, step := range []struct{ ran, want time.Duration }{
		{time.Second, 0}, {time.Second, 10 * time.Second}, {time.Second, 20 * time.Second}, {9 * time.Minute, 40 * time.Second},
		{0, 80 * time.Second}, {0, 160 * time.Second}, {0, 5 * time.Minute}, {0, 5 * time.Minute},
		{10 * time.Minute, 0}, {0, 10 * time.Second},
	} {
		if got := b.after(step.ran); got != step.want {
			t.Errorf("step %d: after(%s) = %s, want %s", i, step.ran, got, step.want)
		}
	}
}

func TestThresholds(t *testing.T) {
	for name, c := range map[string]struct {
		probe   corev1.Probe
		results string // + and -
		want    string // decisions: +, - or .
	}{
		"When failures reach the threshold, it should decide":         {corev1.Probe{FailureThreshold: 3}, "--+---", "..+..-"},
		"When no failure threshold is set, it should be three":        {corev1.Probe{}, "---", "..-"},
		"When more successes are needed, it should wait for them":     {corev1.Probe{SuccessThreshold: 2, FailureThreshold: 1}, "+-++", ".-.+"},
		"When a verdict holds, every further result should repeat it": {corev1.Probe{FailureThreshold: 1}, "++--", "++--"},
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
