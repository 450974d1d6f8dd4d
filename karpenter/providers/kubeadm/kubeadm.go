// SPDX-License-Identifier: Apache-2.0

// Package kubeadm renders the bootstrap data of machines that join with kubeadm, with Cluster API's own renderer. A
// burst of machines then takes one Secret each, where the bootstrap provider needs a dozen requests for a
// KubeadmConfig and its Secret.
package kubeadm

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/cloudinit"
	kubeadmtypes "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types"
)

// Kind of the bootstrap configs that Parse reads.
var Kind = bootstrapv1.GroupVersion.WithKind("KubeadmConfig")

// ErrProviderNeeded is returned for a config that only the bootstrap provider can render, because it needs data that Karpenter can't
// read.
var ErrProviderNeeded = errors.New("only the bootstrap provider can render this config")

// Discovery is how a machine discovers its guest cluster, unless its config declares it.
type Discovery struct {
	// Endpoint of the guest's API server, as host:port.
	Endpoint string
	// CACertHashes pin the guest's certificate authorities, in kubeadm's form: "sha256:<hex of the public key's digest>".
	CACertHashes []string
}

// Config is a KubeadmConfig whose bootstrap data can be rendered.
type Config struct {
	spec    bootstrapv1.KubeadmConfigSpec
	version semver.Version
}

// Parse parses a KubeadmConfig for a machine of a Kubernetes version, with or without a leading v. It returns
// ErrProviderNeeded if the config refers to Secrets, has templates, uses Ignition, joins without a bootstrap token,
// is of another API version, or has fields that this version of Cluster API's types lacks.
func Parse(object *unstructured.Unstructured, version string, discovery Discovery) (*Config, error) {
	if object.GroupVersionKind() != Kind {
		return nil, fmt.Errorf("%w: it is a %s", ErrProviderNeeded, object.GroupVersionKind())
	}
	parsed, err := semver.ParseTolerant(version)
	if err != nil {
		return nil, fmt.Errorf("%w: version %q of its machine: %w", ErrProviderNeeded, version, err)
	}
	config := &bootstrapv1.KubeadmConfig{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, config, true); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProviderNeeded, err)
	}
	if reason := needsProvider(&config.Spec); reason != "" {
		return nil, fmt.Errorf("%w: %s", ErrProviderNeeded, reason)
	}
	token := &config.Spec.JoinConfiguration.Discovery.BootstrapToken
	token.APIServerEndpoint = cmp.Or(token.APIServerEndpoint, discovery.Endpoint)
	if len(token.CACertHashes) == 0 {
		token.CACertHashes = discovery.CACertHashes
	}
	if token.APIServerEndpoint == "" || len(token.CACertHashes) == 0 {
		return nil, fmt.Errorf("%w: the guest's endpoint or its certificate authority isn't known", ErrProviderNeeded)
	}
	return &Config{spec: config.Spec, version: parsed}, nil
}

// needsProvider returns why only the bootstrap provider can render a config.
func needsProvider(spec *bootstrapv1.KubeadmConfigSpec) string {
	if spec.Format != "" && spec.Format != bootstrapv1.CloudConfig {
		return "its format is " + string(spec.Format) // Cluster API's renderer of Ignition takes archived libraries along
	}
	for _, file := range spec.Files {
		if file.ContentFrom.IsDefined() || file.ContentFormat != "" {
			return "file " + file.Path + " is read from a Secret or is a template"
		}
	}
	for _, user := range spec.Users {
		if user.PasswdFrom.IsDefined() {
			return "the password of user " + user.Name + " is read from a Secret"
		}
	}
	join := &spec.JoinConfiguration
	switch {
	case join.ControlPlane != nil:
		return "it joins a control plane"
	case join.Discovery.File.IsDefined():
		return "it discovers the cluster by a file"
	case join.Discovery.BootstrapToken.Token != "" || join.Discovery.TLSBootstrapToken != "":
		return "it has a bootstrap token of its own"
	}
	return ""
}

// Render returns the data of the machine's bootstrap Secret, under the keys "value" and "format" that Cluster API's contract names. The
// machine joins with the given token, and with the taint that Cluster API expects of a node that it hasn't initialized.
//
// The rules are those of Cluster API's kubeadm bootstrap provider for workers (joinWorker in bootstrap/kubeadm/reconcilers/kubeadmconfig).
func (c *Config) Render(token string) (map[string][]byte, error) {
	spec := c.spec.DeepCopy()
	join := &spec.JoinConfiguration
	join.Discovery.BootstrapToken.Token = token
	taints := ptr.Deref(join.NodeRegistration.Taints, nil)
	if !hasTaint(taints, clusterv1.NodeUninitializedTaint) {
		join.NodeRegistration.Taints = ptr.To(append(taints, clusterv1.NodeUninitializedTaint))
	}
	joinData, err := kubeadmtypes.MarshalJoinConfigurationForVersion(join, c.version)
	if err != nil {
		return nil, fmt.Errorf("encoding the join configuration: %w", err)
	}
	input := &cloudinit.NodeInput{
		BaseUserData: cloudinit.BaseUserData{
			AdditionalFiles:     spec.Files,
			BootCommands:        spec.BootCommands,
			PreKubeadmCommands:  spec.PreKubeadmCommands,
			PostKubeadmCommands: spec.PostKubeadmCommands,
			Users:               spec.Users,
			Mounts:              spec.Mounts,
			KubernetesVersion:   c.version,
		},
		JoinConfiguration: joinData,
	}
	if spec.NTP.IsDefined() {
		input.NTP = &spec.NTP
	}
	if spec.DiskSetup.IsDefined() {
		input.DiskSetup = &spec.DiskSetup
	}
	if spec.Verbosity != nil {
		input.KubeadmVerbosity = fmt.Sprintf("--v %d", *spec.Verbosity)
	}
	value, err := cloudinit.NewNode(input)
	if err != nil {
		return nil, fmt.Errorf("rendering bootstrap data: %w", err)
	}
	return map[string][]byte{"value": value, "format": []byte(bootstrapv1.CloudConfig)}, nil
}

func hasTaint(taints []corev1.Taint, wanted corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(taint corev1.Taint) bool { return taint.MatchTaint(&wanted) })
}

// CACertHashes returns the pins of the certificate authorities that a connection trusts; none if it trusts the
// system's.
func CACertHashes(config *rest.Config) ([]string, error) {
	loaded := rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(loaded); err != nil {
		return nil, fmt.Errorf("reading the guest's certificate authority: %w", err)
	}
	if len(loaded.CAData) == 0 {
		return nil, nil
	}
	authorities, err := certutil.ParseCertsPEM(loaded.CAData)
	if err != nil {
		return nil, fmt.Errorf("parsing the guest's certificate authority: %w", err)
	}
	hashes := make([]string, 0, len(authorities))
	for _, authority := range authorities {
		hashes = append(hashes, pin(authority))
	}
	return hashes, nil
}

// pin is a kubeadm public key pin: RFC 7469's, in hexadecimal.
func pin(certificate *x509.Certificate) string {
	digest := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(digest[:])
}
