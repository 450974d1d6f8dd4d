// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/blang/semver/v4"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/utils/env"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// Options are the provider's own flags, beside Karpenter core's. Each has an environment variable as its default.
type Options struct {
	// GuestKubeconfig is the guest cluster's kubeconfig file. Defaults to the program's own kubeconfig or service
	// account.
	GuestKubeconfig string
	// ManagementKubeconfig is the management cluster's kubeconfig file. Defaults likewise, so that without both the
	// guest is the management cluster.
	ManagementKubeconfig string
	// ClusterName is the Cluster API Cluster that nodes join.
	ClusterName string
	// Namespace of that Cluster in the management cluster: the control-plane namespace.
	Namespace string
	// SharedNamespace: Clusters of other Karpenters are in Namespace, too. Then only objects that belong to ClusterName are used, and the
	// names of this Karpenter's own end in it.
	SharedNamespace bool
	// NodeVersion is the Kubernetes version of nodes whose node class sets none. Defaults to the version of the
	// guest's API server.
	NodeVersion string
	// NodeUpgradeWindow is when nodes may be replaced to reach NodeVersion: see version.ParseUpgrades. Defaults to
	// any time.
	NodeUpgradeWindow string
	// RolloutID names this process's rollout. If empty, nodes are replaced without regard to rollouts.
	RolloutID string
	// AllowedBootstrapPatches are the allowed bootstrap patches of node classes, as JSON in the format of
	// spec.bootstrapPatches. If empty, any are allowed.
	AllowedBootstrapPatches string
	// KubeletBounds bound spec.kubelet of node classes, as JSON in the format of v1alpha1.KubeletBounds. If empty, there are none.
	KubeletBounds string
	// NodeImageFile names the images that machines boot from; empty for none.
	NodeImageFile string
	// PriceFile holds prices of instance types; empty for none.
	PriceFile string
	// ZoneTopologyKeys and RegionTopologyKeys are CSI drivers' topology keys beside those that package wellknown has:
	// labels separated by commas.
	ZoneTopologyKeys, RegionTopologyKeys string
	// ProfileFile holds the platform's profiles of infrastructure kinds; empty for none.
	ProfileFile string
	// SharedCatalogNamespace is the namespace of the InstanceTypeCatalogs that the platform shares with all clusters; empty for none.
	SharedCatalogNamespace string
	// MemoryOverhead is the percentage of a machine's nominal memory that its node is assumed to lack, such as 7.5%.
	MemoryOverhead string
	// RepairPolicies are node conditions for which nodes are repaired, beside the built-in ones, as JSON: see v1alpha1.RepairPolicy.
	RepairPolicies string
	// InPlaceReboot: some of the cluster's machines can be rebooted in place.
	InPlaceReboot bool
	// NodeRecordDays and NodeRecordLimit bound the NodeRecords of nodes that are gone.
	NodeRecordDays, NodeRecordLimit int

	// Parsed holds the flags above that have a format of their own.
	Parsed Parsed
}

// Parsed are the values of flags.
type Parsed struct {
	// AllowedPatches are those of AllowedBootstrapPatches; nil if any are allowed.
	AllowedPatches []v1alpha1.BootstrapPatches
	// Upgrades is NodeUpgradeWindow.
	Upgrades version.Upgrades
	// TopologyKeys are ZoneTopologyKeys and RegionTopologyKeys.
	TopologyKeys wellknown.TopologyKeys
	// MemoryOverhead is a fraction.
	MemoryOverhead float64
	RepairPolicies []v1alpha1.RepairPolicy
	// KubeletBounds is nil where there are none.
	KubeletBounds *v1alpha1.KubeletBounds
}

var _ options.Injectable = (*Options)(nil)

// AddFlags implements options.Injectable.
func (o *Options) AddFlags(fs *options.FlagSet) {
	fs.StringVar(&o.GuestKubeconfig, "guest-kubeconfig", env.WithDefaultString("GUEST_KUBECONFIG", ""),
		"Kubeconfig file of the guest cluster, whose pods get nodes. Without it the guest is the cluster that this program's own kubeconfig or "+
			"service account leads to. A token file that it names is read again when it changes.")
	fs.StringVar(&o.ManagementKubeconfig, "management-kubeconfig", env.WithDefaultString("MANAGEMENT_KUBECONFIG", ""),
		"Kubeconfig file of the management cluster, which has the Machines. Without it that is the cluster that this program's own kubeconfig "+
			"or service account leads to.")
	fs.StringVar(&o.ClusterName, "cluster-name", env.WithDefaultString("CLUSTER_NAME", ""),
		"Name of the Cluster API Cluster that nodes join.")
	fs.StringVar(&o.Namespace, "namespace", env.WithDefaultString("POD_NAMESPACE", ""),
		"Namespace of that Cluster in the management cluster. Nothing outside it is read or written, but for the catalogs of "+
			"--shared-catalog-namespace.")
	fs.BoolVarWithEnv(&o.SharedNamespace, "shared-namespace", "SHARED_NAMESPACE", false,
		"Other Clusters in that namespace have Karpenters of their own. Templates and catalogs are then used only "+
			"with the label "+v1beta1.ClusterNameLabel+" or an owner reference of this Cluster, or where a MachineDeployment of it refers to "+
			"them, and the CapacityLease is karpenter-<cluster-name>.")
	fs.StringVar(&o.AllowedBootstrapPatches, "allowed-bootstrap-patches", env.WithDefaultString("ALLOWED_BOOTSTRAP_PATCHES", ""),
		"The bootstrap patches that node classes may have, in JSON as spec.bootstrapPatches of a node class has them; [] allows none. Without "+
			"it any are allowed: anyone who may write a node class can then make a machine read what the bootstrap provider may, such as Secrets "+
			"of the namespace.")
	fs.StringVar(&o.KubeletBounds, "kubelet-bounds", env.WithDefaultString("KUBELET_BOUNDS", ""),
		`What node classes may set in spec.kubelet, in JSON, such as `+
			`{"forbidden":["clusterDNS"],"max":{"maxPods":250},"min":{"systemReserved":{"memory":"512Mi"}}}. Without it every valid value.`)
	fs.StringVar(&o.NodeVersion, "node-version", env.WithDefaultString("NODE_VERSION", ""),
		"Kubernetes version of nodes whose node class names none, such as 1.36.3. Without it nodes follow the guest's API server, and they "+
			"never exceed it.")
	fs.StringVar(&o.NodeUpgradeWindow, "node-upgrade-window", env.WithDefaultString("NODE_UPGRADE_WINDOW", ""),
		`When nodes may be replaced because --node-version is another than theirs: a maintenance window in JSON, such as `+
			`{"schedule":"0 2 * * 6","duration":"4h","timeZone":"Europe/Zurich"}, or never. Without it at any time. New nodes get `+
			`--node-version in any case.`)
	fs.StringVar(&o.RolloutID, "rollout-id", env.WithDefaultString("ROLLOUT_ID", ""),
		"Name of the rollout that this process is of. Nodes aren't replaced because of drift while the annotation "+v1alpha1.RolloutAnnotation+
			" of their node class names another one: then replicas of that one may still run. Without it, or without the annotation, they are.")
	fs.StringVar(&o.NodeImageFile, "node-image-file", env.WithDefaultString("NODE_IMAGE_FILE", ""),
		"JSON file of the images that machines boot from, a list of {version, images}, where images are by architecture, infrastructure and "+
			"region or format, and for nodes of that version. It is read again when it changes, and it need not exist. Bootstrap patches have "+
			"them as variables.")
	fs.StringVar(&o.PriceFile, "price-file", env.WithDefaultString("PRICE_FILE", ""),
		"YAML file of prices in US dollars an hour, a list of {instanceType, zone, capacityType, price}. It is read again when it changes, and "+
			"it need not exist. A price in it takes the place of the annotations on templates and MachineDeployments.")
	fs.StringVar(&o.ZoneTopologyKeys, "zone-topology-keys", env.WithDefaultString("ZONE_TOPOLOGY_KEYS", ""),
		"Topology keys of CSI drivers, separated by commas, whose values are those of the label topology.kubernetes.io/zone, such as "+
			"csi.example.com/zone. A pod whose volume is limited by one of them gets a node in that zone. The keys of widespread drivers "+
			"are built in.")
	fs.StringVar(&o.RegionTopologyKeys, "region-topology-keys", env.WithDefaultString("REGION_TOPOLOGY_KEYS", ""),
		"The same for the label topology.kubernetes.io/region.")
	fs.StringVar(&o.ProfileFile, "profile-file", env.WithDefaultString("PROFILE_FILE", ""),
		"YAML file of profiles of infrastructure kinds, which add kinds or correct those that are built in. It is read again when it changes, "+
			"and it need not exist.")
	fs.StringVar(&o.SharedCatalogNamespace, "shared-catalog-namespace", env.WithDefaultString("SHARED_CATALOG_NAMESPACE", ""),
		"Namespace of the management cluster whose InstanceTypeCatalogs node classes may select with scope Shared. Without it only catalogs "+
			"beside the Cluster can be selected.")
	fs.StringVar(&o.MemoryOverhead, "vm-memory-overhead", env.WithDefaultString("VM_MEMORY_OVERHEAD", "7.5%"),
		"How much of the memory that an infrastructure template's status or spec declares its nodes are assumed to lack, because a hypervisor "+
			"and a kernel keep it, as a percentage. It counts until nodes of the template have reported. Memory that an annotation declares is "+
			"taken as it is.")
	fs.StringVar(&o.RepairPolicies, "repair-policies", env.WithDefaultString("REPAIR_POLICIES", ""),
		`Node conditions for which nodes are repaired, beside those that are built in, in JSON, such as `+
			`[{"conditionType":"GPUHealthy","conditionStatus":"False","reason":"^Xid79$","tolerationDuration":"10m",`+
			`"terminationGracePeriod":"5m","priority":50,"action":"Replace"}]. Only the first two and tolerationDuration are required. Entries `+
			`for a condition and status that is built in replace it. Without the feature gate NodeRepair it has no effect.`)
	fs.BoolVarWithEnv(&o.InPlaceReboot, "in-place-reboot", "IN_PLACE_REBOOT", false,
		"Some of the cluster's machines can be rebooted in place. Without it, repair policies with the action Reboot replace nodes.")
	fs.IntVar(&o.NodeRecordDays, "node-record-days", env.WithDefaultInt("NODE_RECORD_DAYS", 7),
		"How many days Karpenter keeps the NodeRecord of a node that is gone.")
	fs.IntVar(&o.NodeRecordLimit, "node-record-limit", env.WithDefaultInt("NODE_RECORD_LIMIT", 1000),
		"How many NodeRecords of nodes that are gone Karpenter keeps at most.")
}

// Parse implements options.Injectable.
func (o *Options) Parse(fs *options.FlagSet, args ...string) error {
	if !fs.Parsed() {
		if err := fs.Parse(args); err != nil {
			return err
		}
	}
	return o.complete()
}

// complete validates the flags and sets Parsed.
func (o *Options) complete() error {
	var errs []error
	var err error
	if o.ClusterName == "" {
		errs = append(errs, errors.New("--cluster-name (CLUSTER_NAME) is needed: the Cluster API Cluster that nodes join"))
	} else if msgs := validation.IsDNS1123Subdomain(o.ClusterName); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("--cluster-name %q: %s", o.ClusterName, strings.Join(msgs, "; ")))
	}
	if o.Namespace == "" {
		errs = append(errs, errors.New("--namespace (POD_NAMESPACE) is needed: the namespace of the Cluster"))
	} else if msgs := validation.IsDNS1123Label(o.Namespace); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("--namespace %q: %s", o.Namespace, strings.Join(msgs, "; ")))
	}
	if msgs := validation.IsDNS1123Label(o.SharedCatalogNamespace); o.SharedCatalogNamespace != "" && len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("--shared-catalog-namespace %q: %s", o.SharedCatalogNamespace, strings.Join(msgs, "; ")))
	}
	if o.GuestKubeconfig != "" && o.GuestKubeconfig == o.ManagementKubeconfig {
		errs = append(errs, fmt.Errorf("--guest-kubeconfig and --management-kubeconfig are both %q; for a cluster that is both, set "+
			"KUBECONFIG instead", o.GuestKubeconfig))
	}
	err = yaml.UnmarshalStrict([]byte(o.AllowedBootstrapPatches), &o.Parsed.AllowedPatches)
	if err != nil || o.AllowedBootstrapPatches != "" && o.Parsed.AllowedPatches == nil { // null would allow any
		errs = append(errs, fmt.Errorf("--allowed-bootstrap-patches isn't a list as spec.bootstrapPatches of a node class has it, in JSON: %w",
			cmp.Or(err, errors.New("it is null"))))
	}
	if err := yaml.UnmarshalStrict([]byte(o.KubeletBounds), &o.Parsed.KubeletBounds); err != nil {
		errs = append(errs, fmt.Errorf("--kubelet-bounds isn't an object with forbidden, max, min and allowedFields, in JSON: %w", err))
	}
	if o.Parsed.Upgrades, err = version.ParseUpgrades(o.NodeUpgradeWindow); err != nil {
		errs = append(errs, fmt.Errorf("--node-upgrade-window: %w", err))
	}
	if o.Parsed.TopologyKeys, err = wellknown.ParseTopologyKeys(o.ZoneTopologyKeys, o.RegionTopologyKeys); err != nil {
		errs = append(errs, fmt.Errorf("--zone-topology-keys and --region-topology-keys: %w", err))
	}
	if o.Parsed.MemoryOverhead, err = template.ParsePercentage(o.MemoryOverhead); err != nil {
		errs = append(errs, fmt.Errorf("--vm-memory-overhead %q %w", o.MemoryOverhead, err))
	}
	if o.Parsed.RepairPolicies, err = v1alpha1.ParseRepairPolicies(o.RepairPolicies); err != nil {
		errs = append(errs, fmt.Errorf("--repair-policies: %w", err))
	}
	if min(o.NodeRecordDays, o.NodeRecordLimit) < 1 {
		errs = append(errs, fmt.Errorf("--node-record-days %d and --node-record-limit %d must be positive", o.NodeRecordDays, o.NodeRecordLimit))
	}
	if o.NodeVersion != "" {
		if _, err := semver.Parse(strings.TrimPrefix(o.NodeVersion, "v")); err != nil {
			errs = append(errs, fmt.Errorf("--node-version %q isn't a version such as 1.36.3: %w", o.NodeVersion, err))
		}
	}
	return errors.Join(errs...)
}

// Names are those of this Karpenter's objects in the control-plane namespace.
func (o *Options) Names() v1beta1.Names {
	if o.SharedNamespace {
		return v1beta1.SharedNames(o.ClusterName)
	}
	return v1beta1.DedicatedNames()
}

// ToContext implements options.Injectable. Run passes these options explicitly, so the context doesn't hold them.
func (o *Options) ToContext(ctx context.Context) context.Context { return ctx }

// ParseOptions parses a command line, with Karpenter core's options, which core itself panics on if they are invalid.
func ParseOptions(args []string, output io.Writer) (Options, *options.Options, error) {
	parsed, core := &Options{}, &options.Options{}
	fs := &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter-clusterapi", flag.ContinueOnError)}
	fs.SetOutput(output)
	parsed.AddFlags(fs)
	core.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return Options{}, nil, err
	}
	if rest := fs.Args(); len(rest) > 0 {
		return Options{}, nil, fmt.Errorf("unexpected argument %q", rest[0])
	}
	if err := core.Parse(fs, args...); err != nil {
		return Options{}, nil, err
	}
	err := parsed.complete()
	return *parsed, core, err
}
