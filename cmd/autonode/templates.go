// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// newTemplatesCommand returns `autonode templates`, which shows what the sources of a node class become.
func newTemplatesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "templates",
		Short: "Look at the machines that a node class can make",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTemplatesRenderCommand())
	return cmd
}

func newTemplatesRenderCommand() *cobra.Command {
	var files []string
	var source string
	chosen := machine.Chosen{}
	cmd := &cobra.Command{
		Use:   "render -f FILE...",
		Short: "Print the machines that would be made, without a cluster",
		Long: `Print the machines that would be made, without a cluster.

The files contain one ClusterAPINodeClass and what it selects: infrastructure templates, MachineDeployments and
bootstrap templates. For each source the command applies the patches of the source and of the node class, and
prints the infrastructure machine, the bootstrap config and the Machine of a NodeClaim "example". Labels and taints
of a NodePool are missing. An image of the release payload appears as its name, such as image.aws.us-east-1.

A source that can't be used is an error, as in the node class's conditions. The others are printed.`,
		Example: `  autonode templates render -f nodeclass.yaml -f templates.yaml --capacity-type spot --zone a
  kubectl -n clusters-blue get awsmachinetemplates,kubeadmconfigtemplates -o yaml | autonode templates render -f nodeclass.yaml -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return errors.New("name the files with the node class and its sources: -f FILE")
			}
			if chosen.CapacityType != "on-demand" && chosen.CapacityType != "spot" {
				return fmt.Errorf("--capacity-type %q: want on-demand or spot", chosen.CapacityType)
			}
			objects, err := readObjects(cmd.InOrStdin(), files)
			if err != nil {
				return err
			}
			return renderTemplates(cmd.Context(), cmd.OutOrStdout(), objects, source, chosen)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&files, "filename", "f", nil, "file with objects in YAML or JSON, or - for standard input; may be repeated")
	flags.StringVar(&source, "source", "", "name of the one source to print; without it all are printed")
	flags.StringVar(&chosen.ClusterName, "cluster-name", "example", "name of the Cluster that the machine would join")
	flags.StringVar(&chosen.Version, "version", "1.36.3", "Kubernetes version of the node, where the node class or the source names none")
	flags.StringVar(&chosen.Zone, "zone", "", "zone of the node")
	flags.StringVar(&chosen.FailureDomain, "failure-domain", "", "failure domain of the Machine; without it the zone")
	flags.StringVar(&chosen.CapacityType, "capacity-type", "on-demand", "on-demand or spot")
	return cmd
}

// maxObjects bounds what is read from one file, in bytes.
const maxObjects = 64 << 20

// objectFiles are objects that were read from files.
type objectFiles []*unstructured.Unstructured

func readObjects(stdin io.Reader, files []string) (objectFiles, error) {
	var objects objectFiles
	for _, file := range files {
		content, err := readFile(stdin, file)
		if err != nil {
			return nil, err
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
		for n := 1; ; n++ {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: document %d: %w", file, n, err)
			}
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(document, &u.Object); err != nil {
				return nil, fmt.Errorf("%s: document %d: %w", file, n, err)
			}
			switch {
			case len(u.Object) == 0:
				continue
			case u.GetKind() == "" || u.GetAPIVersion() == "":
				return nil, fmt.Errorf("%s: document %d has no apiVersion or no kind", file, n)
			}
			// Numbers as the API server's client has them.
			raw, err := yaml.YAMLToJSON(document)
			if err == nil {
				err = u.UnmarshalJSON(raw)
			}
			if err == nil && u.IsList() {
				err = u.EachListItem(func(item runtime.Object) error {
					if each, ok := item.(*unstructured.Unstructured); ok {
						objects = append(objects, each)
					}
					return nil
				})
			} else {
				objects = append(objects, u)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: document %d: %w", file, n, err)
			}
		}
	}
	return objects, nil
}

func readFile(stdin io.Reader, file string) ([]byte, error) {
	reader := stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		reader = opened
	}
	content, err := io.ReadAll(io.LimitReader(reader, maxObjects+1))
	if err == nil && len(content) > maxObjects {
		err = fmt.Errorf("%s has more than %d bytes", file, maxObjects)
	}
	return content, err
}

// List implements template.Objects.
func (o objectFiles) List(_ context.Context, kind schema.GroupKind, selector labels.Selector) ([]*unstructured.Unstructured, error) {
	var found []*unstructured.Unstructured
	for _, object := range o {
		if object.GroupVersionKind().GroupKind() == kind && selector.Matches(labels.Set(object.GetLabels())) {
			found = append(found, object)
		}
	}
	return found, nil
}

// Get implements template.Objects.
func (o objectFiles) Get(_ context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	for _, object := range o {
		if object.GroupVersionKind().GroupKind() == kind && object.GetName() == name {
			return object, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
}

// nodeClass returns the one that the files contain.
func (o objectFiles) nodeClass() (*v1alpha1.ClusterAPINodeClass, error) {
	classes, err := o.List(context.Background(), schema.GroupKind{Group: v1alpha1.Group, Kind: v1alpha1.Kind}, labels.Everything())
	if err != nil {
		return nil, err
	}
	if len(classes) != 1 {
		return nil, fmt.Errorf("the files contain %d ClusterAPINodeClasses; want one", len(classes))
	}
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(classes[0].Object, nodeClass, true)
	if err != nil {
		return nil, fmt.Errorf("ClusterAPINodeClass %s: %w", classes[0].GetName(), err)
	}
	return nodeClass, nil
}

// anySecret takes for granted that a node class's bootstrap Secret exists.
type anySecret struct{ client.Reader }

// Get finds everything.
func (anySecret) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// renderTemplates prints the machines of one source, or of all. The error joins why others can't be used.
func renderTemplates(ctx context.Context, out io.Writer, objects objectFiles, source string, chosen machine.Chosen) error {
	nodeClass, err := objects.nodeClass()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.GetNamespace() == "" {
			object.SetNamespace(corev1.NamespaceDefault)
		}
	}
	resolver := template.NewResolver(template.Config{Objects: objects, ClusterName: chosen.ClusterName, Secrets: anySecret{}})
	found, err := resolver.Resolve(ctx, nodeClass)
	if err != nil {
		return err
	}
	found = found.Checked(func(tmpl *template.Template) error { return machine.CheckPatches(nodeClass, tmpl) })
	problems := append(found.SelectorErrs, found.BootstrapErr)
	for _, invalid := range found.Invalid {
		if source == "" || invalid.Source.Name == source {
			problems = append(problems, invalid)
		}
	}
	printed := 0
	for i := range found.Templates {
		tmpl := &found.Templates[i]
		if source != "" && tmpl.Source.Name != source || !tmpl.Bootstrap.IsDefined() {
			continue
		}
		if err := renderTemplate(out, nodeClass, tmpl, chosen); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", tmpl.Source, err))
			continue
		}
		printed++
	}
	if err := errors.Join(problems...); err != nil || printed > 0 {
		return err
	}
	return errors.New("the node class selects none of the objects in the files")
}

func renderTemplate(out io.Writer, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, chosen machine.Chosen) error {
	if nodeClass.Spec.Version != "" {
		chosen.Version = nodeClass.Spec.Version
	} else if tmpl.Version() != "" {
		chosen.Version = tmpl.Version()
	}
	if chosen.Zone == "" && len(tmpl.FailureDomains) > 0 {
		chosen.Zone = tmpl.FailureDomains[0]
	}
	if chosen.FailureDomain == "" {
		chosen.FailureDomain = chosen.Zone
	}
	made, err := machine.Example(nodeClass, tmpl, chosen)
	if err != nil {
		return err
	}
	rendered := []any{made.Infrastructure, made.Machine}
	if made.Bootstrap != nil {
		rendered = []any{made.Infrastructure, made.Bootstrap, made.Machine}
	}
	printf(out, "# %s as %s\n", tmpl.Source, tmpl.InstanceType)
	for _, object := range rendered {
		content, err := marshalYAML(object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "---\n%s", content); err != nil {
			return err
		}
	}
	return nil
}
