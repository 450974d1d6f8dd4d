// SPDX-License-Identifier: Apache-2.0

// Package hostedcluster is `autonode hosted-cluster`, which turns AutoNode on for a Cluster of Cluster API.
package hostedcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/check"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/manifests"
)

// NewCommand returns `autonode hosted-cluster`.
func NewCommand() *cobra.Command {
	return command.Group(&cobra.Command{
		Use:     "hosted-cluster",
		Aliases: []string{"hc"},
		Short:   "Turn AutoNode on for a Cluster API Cluster",
	}, newCreateCommand())
}

// CreateOptions are those of `autonode hosted-cluster create`.
type CreateOptions struct {
	Management cluster.Flags
	Templates  []string
	Shared     bool
	DryRun     cluster.DryRun

	Cluster, Namespace, Release, PullSecret, Bootstrap, Selector, OperatorNamespace, Output string

	// sharedFlag: without --shared-namespace, the namespace's other Clusters decide.
	sharedFlag *pflag.Flag
}

func newCreateCommand() *cobra.Command {
	var o CreateOptions
	cmd := command.New(&cobra.Command{
		Use:   "create --cluster NAMESPACE/NAME",
		Short: "Create the HostedCluster of a Cluster, with consent",
		Long: `Create the HostedCluster of a Cluster, with consent.

The command writes two things into the management cluster: the annotation autonode.io/consents-to on the Cluster, and a
HostedCluster with the Cluster's name. Karpenter then launches machines like those of the Cluster's MachineDeployments,
whose own replicas stay, or from the machine templates that --templates names.

It first checks AutoNode's requirements. It warns about those that AutoNode waits for, such as a control plane that isn't
initialized yet. It fails, and writes nothing, if the HostedCluster can't work.

Where the namespace has several Clusters, the HostedCluster shares it, and the command also writes a RoleBinding: the
operator may then write there under names that end in the Cluster's.`,
		Example: `  # Show what would be written
  autonode hosted-cluster create --cluster team-a/blue --release registry.example/release:1.36.3 --dry-run=client -o yaml

  # Launch machines like those of the Cluster's MachineDeployments, with the operator's default release
  autonode hosted-cluster create --cluster team-a/blue

  # Launch for one of several Clusters in a namespace
  autonode hosted-cluster create --cluster team-a/green --shared-namespace --release registry.example/release:1.36.3

  # Launch from machine templates with a label, in a control-plane namespace of its own
  autonode hosted-cluster create --cluster clusters-blue/blue --namespace clusters --release registry.example/release:1.36.3 \
    --templates VSphereMachineTemplate --selector pool=general --bootstrap KubeadmConfigTemplate/workers`,
	}, &o)
	flags := cmd.Flags()
	o.Management.Add(cmd, cluster.Management, nil)
	flags.StringVar(&o.Cluster, "cluster", "", "the Cluster, as NAMESPACE/NAME (required)")
	flags.StringVarP(&o.Namespace, "namespace", "n", "",
		"namespace of the HostedCluster: the Cluster's, which is the default, or NS if the Cluster's is NS-NAME")
	flags.StringVar(&o.Release, "release", "", "the release payload; without it, that of the other HostedClusters if they all have the "+
		"same, and the operator's default release if there are none")
	flags.StringVar(&o.PullSecret, "pull-secret", "", "Secret in the HostedCluster's namespace with credentials for the payload's registry")
	flags.StringArrayVar(&o.Templates, "templates", nil, "kind of machine templates to launch from, as KIND or KIND.GROUP; repeat for more")
	flags.StringVar(&o.Bootstrap, "bootstrap", "", "bootstrap template of those machines, as KIND/NAME")
	flags.StringVarP(&o.Selector, "selector", "l", "", "labels of the templates or MachineDeployments; by default all of the Cluster's")
	flags.BoolVar(&o.Shared, "shared-namespace", false,
		"let other Clusters of the namespace have HostedClusters, too; by default if the namespace has another Cluster")
	o.sharedFlag = flags.Lookup("shared-namespace")
	flags.StringVar(&o.OperatorNamespace, "operator-namespace", manifests.Namespace,
		"namespace of the operator, which gets permissions in a shared namespace")
	o.Management.Complete(cmd, &clusterv1.Cluster{}, "cluster")
	o.Management.Complete(cmd, &corev1.Namespace{}, "namespace", "operator-namespace")
	o.DryRun.Add(cmd)
	printer.AddFlag(cmd, &o.Output)
	command.RequireFlags(cmd, "cluster")
	return cmd
}

// key of the Cluster.
func (o *CreateOptions) key() client.ObjectKey {
	namespace, name, _ := strings.Cut(o.Cluster, "/")
	return client.ObjectKey{Namespace: namespace, Name: name}
}

// Validate implements command.Options.
func (o *CreateOptions) Validate() error {
	if key := o.key(); key.Namespace == "" || key.Name == "" || strings.Contains(key.Name, "/") {
		return fmt.Errorf("--cluster %q: must be NAMESPACE/NAME", o.Cluster)
	}
	switch {
	case len(o.Templates) == 0 && o.Bootstrap != "":
		return errors.New("--bootstrap is for machine templates: name their kind with --templates")
	case len(o.Templates) > 0 && o.Bootstrap == "":
		return errors.New("--templates needs --bootstrap KIND/NAME: a machine template doesn't define how its machines join")
	}
	_, err := o.clusterAPI(o.key().Name)
	return err
}

// Run inspects what the HostedCluster needs, and creates it.
func (o *CreateOptions) Run(ctx context.Context, streams command.Streams) error {
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	key := o.key()
	if !o.sharedFlag.Changed && (o.Namespace == "" || o.Namespace == key.Namespace) {
		if o.Shared, err = sharesNamespace(ctx, management, key); err != nil {
			return err
		}
	}
	hostedCluster, err := o.hostedCluster(key)
	if err != nil {
		return err
	}
	findings := inspection{management: management, hostedCluster: hostedCluster, operatorNamespace: o.OperatorNamespace}
	if err := findings.inspect(ctx, key); err != nil {
		return err
	}
	for _, c := range findings.Checks {
		if c.Result != check.OK {
			printer.Printf(streams.ErrOut, "Warning: %s: %s; %s\n", c.Subject, c.Message, c.Fix)
		}
	}
	warning, err := o.write(ctx, management, findings.cluster, hostedCluster)
	if err != nil {
		return err
	}
	if warning != "" {
		printer.Line(streams.ErrOut, "Warning:", warning)
	}
	return o.print(streams.Out, hostedCluster)
}

// hostedCluster makes the object of the flags.
func (o *CreateOptions) hostedCluster(cluster client.ObjectKey) (*v1beta1.HostedCluster, error) {
	namespace := cmp.Or(o.Namespace, cluster.Namespace)
	hostedCluster := &v1beta1.HostedCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "HostedCluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cluster.Name},
	}
	switch cluster.Namespace {
	case namespace:
		hostedCluster.Spec.ControlPlaneNamespace = namespace
		if o.Shared {
			// Only HostedClusters that are in the namespace themselves can share it.
			hostedCluster.Spec.ControlPlaneNamespaceMode = v1beta1.ControlPlaneNamespaceShared
		}
	case hostedCluster.DedicatedNamespace(): // the default
		if o.Shared {
			return nil, fmt.Errorf("--shared-namespace: a HostedCluster in namespace %s can't share namespace %s; leave out --namespace, or set "+
				"--shared-namespace=false",
				namespace, cluster.Namespace)
		}
	default:
		return nil, fmt.Errorf("--namespace %s: a HostedCluster there means a Cluster in %s or in %s, not in %s",
			namespace, namespace, hostedCluster.DedicatedNamespace(), cluster.Namespace)
	}
	hostedCluster.Spec.Release.Image = o.Release
	if o.PullSecret != "" {
		hostedCluster.Spec.PullSecret = &corev1.LocalObjectReference{Name: o.PullSecret}
	}
	clusterAPI, err := o.clusterAPI(cluster.Name)
	if err != nil {
		return nil, err
	}
	hostedCluster.Spec.AutoNode = &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
		Name:      v1beta1.ProvisionerKarpenter,
		Karpenter: &v1beta1.Karpenter{Platform: v1beta1.PlatformClusterAPI, ClusterAPI: clusterAPI},
	}}
	return hostedCluster, nil
}

// clusterAPI selects machine templates, or the MachineDeployments of the Cluster, which Cluster API labels with its name.
func (o *CreateOptions) clusterAPI(cluster string) (*v1beta1.ClusterAPI, error) {
	selector, err := metav1.ParseToLabelSelector(o.Selector)
	if err != nil {
		return nil, fmt.Errorf("--selector %q: %w", o.Selector, err)
	}
	if len(o.Templates) == 0 {
		if o.Selector == "" {
			selector = &metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.ClusterNameLabel: cluster}}
		}
		return &v1beta1.ClusterAPI{TemplateSelectors: v1alpha1.TemplateSelectors{ScalableResourceSelector: selector}}, nil
	}
	clusterAPI := &v1beta1.ClusterAPI{}
	for _, template := range o.Templates {
		kind, group := kindAndGroup(template, clusterv1.GroupVersionInfrastructure.Group)
		clusterAPI.InfrastructureTemplateSelectors = append(clusterAPI.InfrastructureTemplateSelectors,
			v1alpha1.InfrastructureTemplateSelector{APIGroup: group, Kind: kind, Selector: *selector})
	}
	kind, name, ok := strings.Cut(o.Bootstrap, "/")
	if !ok || kind == "" || name == "" {
		return nil, fmt.Errorf("--bootstrap %q: must be KIND/NAME, such as KubeadmConfigTemplate/workers", o.Bootstrap)
	}
	kind, group := kindAndGroup(kind, clusterv1.GroupVersionBootstrap.Group)
	clusterAPI.Bootstrap = &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{APIGroup: group,
		Kind: kind, Name: name}}
	return clusterAPI, nil
}

// kindAndGroup reads KIND or KIND.GROUP.
func kindAndGroup(text, usual string) (kind, group string) {
	kind, group, _ = strings.Cut(text, ".")
	return kind, cmp.Or(group, usual)
}

// write creates the HostedCluster, and lets the Cluster consent to it first: a HostedCluster without consent has an error at once. The
// API server tries the HostedCluster before that, so that a rejected one leaves no consent behind. The warning names what AutoNode will
// wait for.
func (o *CreateOptions) write(ctx context.Context, management client.Client, consenting *clusterv1.Cluster,
	hostedCluster *v1beta1.HostedCluster) (
	warning string, err error,
) {
	if o.DryRun == cluster.DryRunClient {
		return "", nil
	}
	if err := client.NewDryRunClient(management).Create(ctx, hostedCluster.DeepCopy(), client.FieldOwner(cluster.FieldOwner)); err != nil {
		return "", fmt.Errorf("creating HostedCluster %s: %w", client.ObjectKeyFromObject(hostedCluster), err)
	}
	if o.DryRun == cluster.DryRunServer {
		return "", nil
	}
	if o.Shared {
		if warning, err = o.grant(ctx, management, consenting.Namespace); err != nil {
			return "", err
		}
	}
	before := consenting.DeepCopy()
	metav1.SetMetaDataAnnotation(&consenting.ObjectMeta, v1beta1.ConsentAnnotation, client.ObjectKeyFromObject(hostedCluster).String())
	if err := management.Patch(ctx, consenting, client.MergeFrom(before), client.FieldOwner(cluster.FieldOwner)); err != nil {
		return warning, fmt.Errorf("annotating Cluster %s: %w", client.ObjectKeyFromObject(consenting), err)
	}
	if err := management.Create(ctx, hostedCluster, client.FieldOwner(cluster.FieldOwner)); err != nil {
		return warning, fmt.Errorf("creating HostedCluster %s: %w", client.ObjectKeyFromObject(hostedCluster), err)
	}
	return warning, nil
}

func (o *CreateOptions) print(out io.Writer, hostedCluster *v1beta1.HostedCluster) error {
	if o.Output == "yaml" {
		if o.Shared {
			printer.Printf(out, "# access: %s\n", o.accessCommand(hostedCluster.Namespace))
		}
		printer.Printf(out, "# consent: kubectl -n %s annotate cluster %s %s=%s\n", hostedCluster.ControlPlaneNamespace(), hostedCluster.Name,
			v1beta1.ConsentAnnotation, client.ObjectKeyFromObject(hostedCluster).String())
	}
	name, suffix := "hostedcluster.autonode.io/"+hostedCluster.Name, o.DryRun.Suffix()
	return printer.Print(out, o.Output, printer.Object{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "HostedCluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: hostedCluster.Namespace, Name: hostedCluster.Name}, Spec: hostedCluster.Spec,
	}, func(to io.Writer) error {
		printer.Printf(to, "cluster.cluster.x-k8s.io/%s annotated%s\n", hostedCluster.Name, suffix)
		printer.Printf(to, "%s created%s\n", name, suffix)
		if suffix == "" {
			printer.Printf(to, "Follow it: kubectl -n %s get hostedclusters.autonode.io %s --watch\n", hostedCluster.Namespace, hostedCluster.Name)
		}
		return nil
	}, name)
}

// notInstalled reports whether the management cluster serves no kind of AutoNode's or Cluster API's.
func notInstalled(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }
