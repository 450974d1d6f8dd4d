// SPDX-License-Identifier: Apache-2.0

// Package file reads the files that commands are given, and the objects in them.
package file

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	clusterv1beta1 "sigs.k8s.io/cluster-api/api/core/v1beta1" //nolint:staticcheck // people still write v1beta1
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// maxSize bounds what is read from one file, in bytes.
const maxSize = 64 << 20

// Objects are those that were read from files.
type Objects []*unstructured.Unstructured

// ReadObjects reads the objects of files in YAML or JSON.
func ReadObjects(stdin io.Reader, files []string) (objects Objects, err error) {
	err = Each(stdin, files, func(_ string, object *unstructured.Unstructured) error {
		objects = append(objects, object)
		return convert(object)
	})
	return objects, err
}

// Each reads the objects of files in YAML or JSON one by one, with the document that each is in.
func Each(stdin io.Reader, files []string, read func(document string, object *unstructured.Unstructured) error) error {
	for _, file := range files {
		content, err := Read(stdin, file)
		if err != nil {
			return err
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
		for n := 1; ; n++ {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			where := fmt.Sprintf("%s: document %d", file, n)
			if err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
			u := &unstructured.Unstructured{}
			raw, err := yaml.YAMLToJSON(document)
			if err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
			if err := json.Unmarshal(raw, &u.Object); err != nil {
				return fmt.Errorf("%s isn't an object with apiVersion and kind", where)
			}
			switch {
			case len(u.Object) == 0:
				continue
			case u.GetKind() == "" || u.GetAPIVersion() == "":
				return fmt.Errorf("%s has no apiVersion or no kind", where)
			}
			add := func(item runtime.Object) error {
				if each, ok := item.(*unstructured.Unstructured); ok {
					return read(where, each)
				}
				return nil
			}
			// Numbers as the API server's client has them.
			if err = u.UnmarshalJSON(raw); err == nil && u.IsList() {
				err = u.EachListItem(add)
			} else if err == nil {
				err = add(u)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
		}
	}
	return nil
}

// convert makes a MachineDeployment of v1beta1 one of v1beta2, as Cluster API's webhook does.
func convert(u *unstructured.Unstructured) error {
	if u.GroupVersionKind() != clusterv1beta1.GroupVersion.WithKind("MachineDeployment") {
		return nil
	}
	old, converted := &clusterv1beta1.MachineDeployment{}, &clusterv1.MachineDeployment{}
	err := errors.Join(runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, old),
		clusterv1beta1.Convert_v1beta1_MachineDeployment_To_v1beta2_MachineDeployment(old, converted, nil))
	if err != nil {
		return fmt.Errorf("MachineDeployment %s: %w", u.GetName(), err)
	}
	reference := func(ref corev1.ObjectReference) clusterv1.ContractVersionedObjectReference {
		return clusterv1.ContractVersionedObjectReference{APIGroup: ref.GroupVersionKind().Group, Kind: ref.Kind, Name: ref.Name}
	}
	converted.Spec.Template.Spec.InfrastructureRef = reference(old.Spec.Template.Spec.InfrastructureRef)
	converted.Spec.Template.Spec.Bootstrap.ConfigRef = reference(ptr.Deref(old.Spec.Template.Spec.Bootstrap.ConfigRef,
		corev1.ObjectReference{}))
	converted.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("MachineDeployment"))
	u.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(converted)
	return err
}

// Open opens a file of any size, or standard input if its name is -. Close it.
func Open(stdin io.Reader, name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(stdin), nil
	}
	return os.Open(name)
}

// Read reads a file, or standard input if its name is -.
func Read(stdin io.Reader, name string) ([]byte, error) { return ReadBounded(stdin, name, maxSize) }

// ReadBounded is Read for a file of at most limit bytes.
func ReadBounded(stdin io.Reader, name string, limit int64) ([]byte, error) {
	file, err := Open(stdin, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return content, err
}

// List implements template.Objects.
func (o Objects) List(_ context.Context, kind schema.GroupKind, selector labels.Selector) ([]*unstructured.Unstructured, error) {
	var found []*unstructured.Unstructured
	for _, object := range o {
		if object.GroupVersionKind().GroupKind() == kind && selector.Matches(labels.Set(object.GetLabels())) {
			found = append(found, object)
		}
	}
	return found, nil
}

// Get implements template.Objects.
func (o Objects) Get(_ context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	for _, object := range o {
		if object.GroupVersionKind().GroupKind() == kind && object.GetName() == name {
			return object, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
}

// NodeClass returns the one that the files contain; without any, what the operator makes of the HostedCluster that they contain.
func (o Objects) NodeClass() (*v1alpha1.ClusterAPINodeClass, error) {
	of := func(kind schema.GroupKind) []*unstructured.Unstructured {
		found, _ := o.List(context.Background(), kind, labels.Everything()) // it never fails
		return found
	}
	classes, hostedClusters := of(schema.GroupKind{Group: v1alpha1.Group, Kind: v1alpha1.Kind}),
		of(schema.GroupKind{Group: v1beta1.Group, Kind: "HostedCluster"})
	nodeClass, hostedCluster := &v1alpha1.ClusterAPINodeClass{}, &v1beta1.HostedCluster{}
	switch {
	case len(classes) == 1:
		return nodeClass, decode(classes[0], nodeClass)
	case len(classes) > 1:
		return nil, fmt.Errorf("the files contain %d ClusterAPINodeClasses instead of one", len(classes))
	case len(hostedClusters) != 1:
		return nil, fmt.Errorf("the files contain 0 ClusterAPINodeClasses and %d HostedClusters; name one file with either: -f FILE",
			len(hostedClusters))
	}
	if err := decode(hostedClusters[0], hostedCluster); err != nil {
		return nil, err
	}
	autoNode := hostedCluster.Spec.AutoNode
	if autoNode == nil || autoNode.ProvisionerConfig.Karpenter == nil || autoNode.ProvisionerConfig.Karpenter.ClusterAPI == nil {
		return nil, fmt.Errorf("HostedCluster %s has no spec.autoNode.provisionerConfig.karpenter.clusterAPI, so it has no default node class",
			hostedCluster.Name)
	}
	return autoNode.ProvisionerConfig.Karpenter.ClusterAPI.DefaultNodeClass(), nil
}

// decode decodes an object strictly.
func decode(object *unstructured.Unstructured, into any) error {
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true)
	if err == nil {
		return nil
	}
	if raw, encodeErr := object.MarshalJSON(); encodeErr == nil {
		if named := json.Unmarshal(raw, into); named != nil {
			err = named // it names the field
		}
	}
	return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
}
