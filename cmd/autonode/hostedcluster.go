// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/message"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// fieldOwner is the manager of the fields that this program writes.
const fieldOwner = "autonode-cli"

// Values of --dry-run, as kubectl has them.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

// newHostedClusterCommand returns `autonode hosted-cluster`.
func newHostedClusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "hosted-cluster",
		Aliases: []string{"hc"},
		Short:   "Turn AutoNode on for a Cluster of Cluster API",
		Args:    subcommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newHostedClusterCreateCommand())
	return cmd
}

type hostedClusterOptions struct {
	management managementFlags
	cluster    string
	namespace  string
	release    string
	pullSecret string
	templates  []string
	bootstrap  string
	selector   string
	shared     bool
	operator   string
	dryRun     string
	output     string
}

func newHostedClusterCreateCommand() *cobra.Command {
	var o hostedClusterOptions
	cmd := &cobra.Command{
		Use:   "create --cluster NAMESPACE/NAME",
		Short: "Create the HostedCluster of a Cluster, with consent",
		Long: `Create the HostedCluster of a Cluster, with consent.

The command writes two things into the management cluster: the annotation autonode.io/consents-to on the Cluster, and a
HostedCluster with the Cluster's name. Karpenter then launches machines like those of the Cluster's MachineDeployments,
whose own replicas stay, or from the machine templates that --templates names.

It first checks what AutoNode needs. What is merely missing, such as a control plane that isn't initialized yet, is a
warning: AutoNode waits for it. What can't work is an error, and nothing is written.

Where the namespace has several Clusters, the HostedCluster shares it, and the command also writes a RoleBinding: the
operator may then write there under names that end in the Cluster's.`,
		Example: `  # Show what would be written
  autonode hosted-cluster create --cluster team-a/blue --release registry.example/release:1.36.3 --dry-run=client -o yaml

  # Launch machines like those of the Cluster's MachineDeployments
  autonode hosted-cluster create --cluster team-a/blue --release registry.example/release:1.36.3

  # Launch for one of several Clusters in a namespace
  autonode hosted-cluster create --cluster team-a/green --shared-namespace --release registry.example/release:1.36.3

  # Launch from machine templates with a label, in a control-plane namespace of its own
  autonode hosted-cluster create --cluster clusters-blue/blue --namespace clusters --release registry.example/release:1.36.3 \
    --templates VSphereMachineTemplate --selector pool=general --bootstrap KubeadmConfigTemplate/workers`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	o.management.add(flags)
	flags.StringVar(&o.cluster, "cluster", "", "the Cluster, as NAMESPACE/NAME (required)")
	flags.StringVarP(&o.namespace, "namespace", "n", "",
		"namespace of the HostedCluster: the Cluster's, which is the default, or NS if the Cluster's is NS-NAME")
	flags.StringVar(&o.release, "release", "", "the release payload; without it, that of the other HostedClusters if they all name the same")
	flags.StringVar(&o.pullSecret, "pull-secret", "", "Secret in the HostedCluster's namespace with credentials for the payload's registry")
	flags.StringArrayVar(&o.templates, "templates", nil, "kind of machine templates to launch from, as KIND or KIND.GROUP; repeat for more")
	flags.StringVar(&o.bootstrap, "bootstrap", "", "bootstrap template of those machines, as KIND/NAME")
	flags.StringVarP(&o.selector, "selector", "l", "", "labels of the templates or MachineDeployments; without it, all of the Cluster's")
	flags.BoolVar(&o.shared, "shared-namespace", false,
		"let other Clusters of the namespace have HostedClusters too; without the flag, if the namespace has another Cluster")
	flags.StringVar(&o.operator, "operator-namespace", operatorNamespace, "namespace of the operator, which gets rights in a shared namespace")
	flags.StringVar(&o.dryRun, "dry-run", dryRunNone, "none; client to write nothing; or server to let the API server try it")
	flags.StringVarP(&o.output, "output", "o", "", "yaml to print the HostedCluster instead of what was done, or name")
	requireFlags(cmd, "cluster")
	registerCompletion(cmd, "dry-run", dryRunNone, dryRunClient, dryRunServer)
	registerCompletion(cmd, "output", "yaml", "name")
	return cmd
}

// check rejects flags before anything is asked.
func (o *hostedClusterOptions) check() (client.ObjectKey, error) {
	namespace, name, ok := strings.Cut(o.cluster, "/")
	key := client.ObjectKey{Namespace: namespace, Name: name}
	switch {
	case !ok || namespace == "" || name == "" || strings.Contains(name, "/"):
		return key, fmt.Errorf("--cluster %q: want NAMESPACE/NAME", o.cluster)
	case !slices.Contains([]string{dryRunNone, dryRunClient, dryRunServer}, o.dryRun):
		return key, fmt.Errorf("--dry-run %q: want none, client or server", o.dryRun)
	case !slices.Contains([]string{"", "yaml", "name"}, o.output):
		return key, fmt.Errorf("--output %q: want yaml or name", o.output)
	case len(o.templates) == 0 && o.bootstrap != "":
		return key, errors.New("--bootstrap is for machine templates: name their kind with --templates")
	case len(o.templates) > 0 && o.bootstrap == "":
		return key, errors.New("--templates needs --bootstrap KIND/NAME: a machine template doesn't say how its machines join")
	}
	return key, nil
}

func (o *hostedClusterOptions) run(cmd *cobra.Command) error {
	key, err := o.check()
	if err != nil {
		return err
	}
	management, err := o.management.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if !cmd.Flags().Changed("shared-namespace") && (o.namespace == "" || o.namespace == key.Namespace) {
		if o.shared, err = sharesNamespace(ctx, management, key); err != nil {
			return err
		}
	}
	hostedCluster, err := o.hostedCluster(key)
	if err != nil {
		return err
	}
	findings := inspection{management: management, hostedCluster: hostedCluster}
	if err := findings.inspect(ctx, key); err != nil {
		return err
	}
	for _, warning := range findings.warnings {
		printLine(cmd.ErrOrStderr(), "Warning:", warning)
	}
	warning, err := o.write(ctx, management, findings.cluster, hostedCluster)
	if err != nil {
		return err
	}
	if warning != "" {
		printLine(cmd.ErrOrStderr(), "Warning:", warning)
	}
	return o.print(cmd.OutOrStdout(), hostedCluster)
}

// hostedCluster makes the object of the flags.
func (o *hostedClusterOptions) hostedCluster(cluster client.ObjectKey) (*v1beta1.HostedCluster, error) {
	namespace := o.namespace
	if namespace == "" {
		namespace = cluster.Namespace
	}
	hostedCluster := &v1beta1.HostedCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "HostedCluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cluster.Name},
	}
	switch cluster.Namespace {
	case namespace:
		hostedCluster.Spec.ControlPlaneNamespace = namespace
		if o.shared {
			// Only HostedClusters that are in the namespace themselves can share it.
			hostedCluster.Spec.ControlPlaneNamespaceMode = v1beta1.ControlPlaneNamespaceShared
		}
	case hostedCluster.OwnNamespace(): // the default
		if o.shared {
			return nil, fmt.Errorf("--shared-namespace: a HostedCluster in namespace %s can't share namespace %s; leave out --namespace, or set --shared-namespace=false",
				namespace, cluster.Namespace)
		}
	default:
		return nil, fmt.Errorf("--namespace %s: a HostedCluster there means a Cluster in %s or in %s, not in %s",
			namespace, namespace, hostedCluster.OwnNamespace(), cluster.Namespace)
	}
	hostedCluster.Spec.Release.Image = o.release
	if o.pullSecret != "" {
		hostedCluster.Spec.PullSecret = &corev1.LocalObjectReference{Name: o.pullSecret}
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
func (o *hostedClusterOptions) clusterAPI(cluster string) (*v1beta1.ClusterAPI, error) {
	selector, err := metav1.ParseToLabelSelector(o.selector)
	if err != nil {
		return nil, fmt.Errorf("--selector %q: %w", o.selector, err)
	}
	if len(o.templates) == 0 {
		if o.selector == "" {
			selector = &metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.ClusterNameLabel: cluster}}
		}
		return &v1beta1.ClusterAPI{TemplateSelectors: v1alpha1.TemplateSelectors{ScalableResourceSelector: selector}}, nil
	}
	clusterAPI := &v1beta1.ClusterAPI{}
	for _, template := range o.templates {
		kind, group, ok := strings.Cut(template, ".")
		if !ok {
			group = clusterv1.GroupVersionInfrastructure.Group
		}
		clusterAPI.InfrastructureTemplateSelectors = append(clusterAPI.InfrastructureTemplateSelectors,
			v1alpha1.InfrastructureTemplateSelector{APIGroup: group, Kind: kind, Selector: *selector})
	}
	kind, name, ok := strings.Cut(o.bootstrap, "/")
	if !ok || kind == "" || name == "" {
		return nil, fmt.Errorf("--bootstrap %q: want KIND/NAME, such as KubeadmConfigTemplate/workers", o.bootstrap)
	}
	kind, group, ok := strings.Cut(kind, ".")
	if !ok {
		group = clusterv1.GroupVersionBootstrap.Group
	}
	clusterAPI.Bootstrap = &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{APIGroup: group, Kind: kind, Name: name}}
	return clusterAPI, nil
}

// write creates the HostedCluster, and lets the Cluster consent to it first: a HostedCluster without consent has an error at once. The API
// server tries the HostedCluster before that, so that a rejected one leaves no consent behind. The warning names what AutoNode will wait for.
func (o *hostedClusterOptions) write(ctx context.Context, management client.Client, cluster *clusterv1.Cluster, hostedCluster *v1beta1.HostedCluster) (
	warning string, err error,
) {
	if o.dryRun == dryRunClient {
		return "", nil
	}
	if err := client.NewDryRunClient(management).Create(ctx, hostedCluster.DeepCopy(), client.FieldOwner(fieldOwner)); err != nil {
		return "", fmt.Errorf("creating HostedCluster %s: %w", client.ObjectKeyFromObject(hostedCluster), err)
	}
	if o.dryRun == dryRunServer {
		return "", nil
	}
	if o.shared {
		if warning, err = o.grant(ctx, management, cluster.Namespace); err != nil {
			return "", err
		}
	}
	before := cluster.DeepCopy()
	metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, v1beta1.ConsentAnnotation, client.ObjectKeyFromObject(hostedCluster).String())
	if err := management.Patch(ctx, cluster, client.MergeFrom(before), client.FieldOwner(fieldOwner)); err != nil {
		return warning, fmt.Errorf("annotating Cluster %s: %w", client.ObjectKeyFromObject(cluster), err)
	}
	if err := management.Create(ctx, hostedCluster, client.FieldOwner(fieldOwner)); err != nil {
		return warning, fmt.Errorf("creating HostedCluster %s: %w", client.ObjectKeyFromObject(hostedCluster), err)
	}
	return warning, nil
}

func (o *hostedClusterOptions) print(out io.Writer, hostedCluster *v1beta1.HostedCluster) error {
	name := "hostedcluster.autonode.io/" + hostedCluster.Name
	switch o.output {
	case "name":
		_, err := fmt.Fprintln(out, message.Line(name))
		return err
	case "yaml":
		content, err := marshalYAML(map[string]any{
			"apiVersion": v1beta1.GroupVersion.String(), "kind": "HostedCluster",
			"metadata": map[string]any{"namespace": hostedCluster.Namespace, "name": hostedCluster.Name}, "spec": hostedCluster.Spec,
		})
		if err != nil {
			return err
		}
		if o.shared {
			printf(out, "# access: %s\n", o.accessCommand(hostedCluster.Namespace))
		}
		printf(out, "# consent: kubectl -n %s annotate cluster %s %s=%s\n", hostedCluster.ControlPlaneNamespace(), hostedCluster.Name,
			v1beta1.ConsentAnnotation, client.ObjectKeyFromObject(hostedCluster).String())
		_, err = out.Write(content)
		return err
	}
	suffix := map[string]string{dryRunClient: " (dry run)", dryRunServer: " (server dry run)"}[o.dryRun]
	printf(out, "cluster.cluster.x-k8s.io/%s annotated%s\n", hostedCluster.Name, suffix)
	printf(out, "%s created%s\n", name, suffix)
	if suffix == "" {
		printf(out, "Follow it: kubectl -n %s get hostedclusters.autonode.io %s --watch\n", hostedCluster.Namespace, hostedCluster.Name)
	}
	return nil
}

// notInstalled reports whether the management cluster serves no kind of AutoNode's or Cluster API's.
func notInstalled(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }
