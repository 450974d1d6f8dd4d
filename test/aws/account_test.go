// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/payload"
	localworld "github.com/autonode-io/autonode/test/world"
	worldaws "github.com/autonode-io/autonode/test/world/aws"
	"github.com/autonode-io/autonode/test/world/ec2"
	"github.com/autonode-io/autonode/test/world/hosting"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/registry"
)

// sessionDuration is the lifetime of Karpenter's credentials, so short that a test sees them renewed.
const sessionDuration = 90 * time.Second

var ec2NodeClass = schema.GroupVersionKind{Group: "karpenter.k8s.aws", Version: "v1", Kind: "EC2NodeClass"}

// hosted is a hosted cluster with platform AWS, and its account: EC2 of the world behind AWS's security.
type hosted struct {
	*cluster
	account *worldaws.Account
	// releases are payloads with Karpenter's AWS provider.
	releases map[string]string
}

func (h *hosted) role() string      { return h.name + "-karpenter" }
func (h *hosted) nodesRole() string { return h.name + "-nodes" }
func (h *hosted) queue() string     { return h.name + "-events" }

// acquireHosted returns the guest of that name with an account that expects it, and payloads that are for it. AutoNode is off.
func acquireHosted(t *testing.T, name string) *hosted {
	t.Helper()
	g := NewWithT(t)
	management, err := newClient(world.Management().RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	guest, err := newClient(world.Guest(name).RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	h := &hosted{cluster: &cluster{name: name, management: management, guest: guest}, releases: map[string]string{}}
	t.Cleanup(func() {
		if t.Failed() {
			h.describe(t)
			h.describeAccount(t)
		}
	})
	server := world.EC2()
	h.account = worldaws.New(worldaws.Config{
		Account: server.Account(), Region: server.Region(), EC2: server, Prices: server.Prices, Assumed: server.AllowAccessKey, SessionDuration: sessionDuration,
		Demands: func(action string, form url.Values) []worldaws.Demand {
			return server.Demands(action, form, func(profile string) worldaws.Demand { return h.account.PassRole(h.account.InstanceProfiles()[profile]) })
		},
	})
	server.CheckInstanceProfiles(func(name string) bool {
		_, ok := h.account.InstanceProfiles()[name]
		return ok
	})
	h.account.CreateQueue(h.queue())
	h.trust(t)
	endpoint, err := h.account.Start(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(endpoint.Close()).To(Succeed()) })
	h.publish(t, endpoint.URL)
	return h
}

// documents are the policies that docs/platform/aws.md prints.
func documents(t *testing.T) (trust, permissions string) {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "platform", "aws.md"))
	g.Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	g.Expect(found).To(HaveLen(2), "the trust policy and the permissions")
	return found[0][1], found[1][1]
}

// trust makes the identity provider and the roles as docs/platform/aws.md describes: with the documents that it prints, for the cluster blue.
func (h *hosted) trust(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	trusted, permitted := documents(t)
	guest := world.Guest(h.name)
	admin, err := rest.HTTPClientFor(guest.RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	ours := strings.NewReplacer("oidc.example/blue", strings.TrimPrefix(guest.URL, "https://"), "blue", h.name, "eu-central-1", h.account.Region())
	h.account.AddOIDCProvider(worldaws.OIDCProvider{Issuer: guest.URL, Audiences: []string{"sts.amazonaws.com"}, Client: admin})
	g.Expect(h.account.PutRole(h.role(), ours.Replace(trusted), ours.Replace(permitted))).To(Succeed())
	g.Expect(h.account.PutRole(h.nodesRole(),
		`{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}`,
		`{"Version": "2012-10-17", "Statement": []}`)).To(Succeed())
}

// publish pushes payloads with Karpenter's AWS provider, as it is released but for variables in its image that say where AWS is.
func (h *hosted) publish(t *testing.T, endpoint string) {
	t.Helper()
	g := NewWithT(t)
	provider, err := programs.EnsureKarpenterAWS(t.Context(), programs.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	definition, err := os.ReadFile(filepath.Join(provider.CRDs(), "karpenter.k8s.aws_ec2nodeclasses.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	var previous []string
	for _, version := range []string{localworld.InitialRelease, localworld.UpgradedRelease} {
		image, err := registry.PackProgram(provider.Program(), "karpenter", map[string]string{"org.opencontainers.image.version": version})
		g.Expect(err).NotTo(HaveOccurred())
		file, err := image.ConfigFile()
		g.Expect(err).NotTo(HaveOccurred())
		config := *file.Config.DeepCopy()
		// The client that the AWS SDK makes itself, to become a role, reads only its own variable.
		config.Env = append(config.Env, "AWS_ENDPOINT_URL="+endpoint, "AWS_ENDPOINT_URL_STS="+endpoint)
		image, err = mutate.Config(image, config)
		g.Expect(err).NotTo(HaveOccurred())
		reference, err := world.Registry().Push(t.Context(), "karpenter/karpenter-aws:"+version, image)
		g.Expect(err).NotTo(HaveOccurred())
		release, err := payload.Build(payload.Spec{Version: version, Previous: previous, Components: []payload.ComponentSpec{{
			Name: "karpenter-aws", Image: reference, Versions: map[string]string{payload.KubernetesVersion: version}, CRDs: [][]byte{definition},
		}}})
		g.Expect(err).NotTo(HaveOccurred())
		h.releases[version], err = world.Registry().Push(t.Context(), "aws/release:"+version, release)
		g.Expect(err).NotTo(HaveOccurred())
		previous = append(previous, version)
	}
}

// admit lets instances join as docs/platform/aws.md describes: with a bootstrap token, whose requests the guest's controller manager approves.
func (h *hosted) admit(t *testing.T) (token string) {
	t.Helper()
	g := NewWithT(t)
	const group = "system:bootstrappers:kubeadm:default-node-token"
	token, err := bootstraputil.GenerateBootstrapToken()
	g.Expect(err).NotTo(HaveOccurred())
	id, secret, _ := strings.Cut(token, ".")
	g.Expect(h.guest.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstrapapi.BootstrapTokenSecretPrefix + id},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey: id, bootstrapapi.BootstrapTokenSecretKey: secret,
			bootstrapapi.BootstrapTokenUsageAuthentication: "true", bootstrapapi.BootstrapTokenUsageSigningKey: "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey: group,
		},
	})).To(Succeed())
	g.Expect(h.guest.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:node-autoapprove-bootstrap"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	})).To(Succeed())
	return token
}

// userData is that of docs/platform/aws.md: one text for all instances of a node class.
func (h *hosted) userData(t *testing.T, token string) string {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "platform", "aws.md"))
	g.Expect(err).NotTo(HaveOccurred())
	document := regexp.MustCompile("(?s)```yaml\n(## template: jinja\n.*?)```").FindStringSubmatch(string(page))
	g.Expect(document).To(HaveLen(2))
	guest := world.Guest(h.name)
	certificates, err := certutil.ParseCertsPEM(guest.CA.Certificate)
	g.Expect(err).NotTo(HaveOccurred())
	return strings.NewReplacer(
		"blue.example:6443", strings.TrimPrefix(guest.URL, "https://"), "k3v9qd.0123456789abcdef", token,
		"sha256:…", fmt.Sprintf("sha256:%x", sha256.Sum256(certificates[0].RawSubjectPublicKeyInfo)),
	).Replace(document[1])
}

// selectImages are the terms of a node class for images with a version of the kubelet: one by its ID, and one that a parameter of SSM names.
func (h *hosted) selectImages(version string) []any {
	parameter := "/" + h.name + "/images/" + version + "/arm64"
	h.account.PutParameter(parameter, ec2.ImageID("v"+version, "arm64"))
	return []any{map[string]any{"id": ec2.ImageID("v"+version, "x86_64")}, map[string]any{"ssmParameter": parameter}}
}

// nodeClass writes an EC2NodeClass as its admin does.
func (h *hosted) nodeClass(t *testing.T, version, userData string) {
	t.Helper()
	byID := func(ids ...string) (terms []any) {
		for _, id := range ids {
			terms = append(terms, map[string]any{"id": id})
		}
		return terms
	}
	class := newEC2NodeClass()
	class.Object["spec"] = map[string]any{
		"amiFamily": "Custom", "amiSelectorTerms": h.selectImages(version), "userData": userData, "role": h.nodesRole(),
		"subnetSelectorTerms": byID("subnet-0a", "subnet-0b", "subnet-0c"), "securityGroupSelectorTerms": byID("sg-0nodes"),
		"capacityReservationSelectorTerms": byID(reservation),
	}
	NewWithT(t).Expect(h.guest.Create(t.Context(), class)).To(Succeed())
}

func newEC2NodeClass() *unstructured.Unstructured {
	class := &unstructured.Unstructured{Object: map[string]any{}}
	class.SetGroupVersionKind(ec2NodeClass)
	class.SetName("default")
	return class
}

// readyClass expects Karpenter to have found everything that the node class names.
func (h *hosted) readyClass(g Gomega, ctx context.Context) {
	class := newEC2NodeClass()
	g.Expect(h.guest.Get(ctx, client.ObjectKeyFromObject(class), class)).To(Succeed())
	content, err := json.Marshal(class)
	g.Expect(err).NotTo(HaveOccurred())
	var read struct {
		Status struct{ Conditions []metav1.Condition }
	}
	g.Expect(json.Unmarshal(content, &read)).To(Succeed())
	g.Expect(meta.IsStatusConditionTrue(read.Status.Conditions, "Ready")).To(BeTrue(), "%+v", read.Status.Conditions)
}

func onAWS(pool *karpv1.NodePool) {
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: ec2NodeClass.Group, Kind: ec2NodeClass.Kind, Name: "default"}
}

func (h *hosted) autoNode() *v1beta1.AutoNode {
	return &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
		Name: v1beta1.ProvisionerKarpenter,
		Karpenter: &v1beta1.Karpenter{Platform: v1beta1.PlatformAWS, AWS: &v1beta1.AWS{
			RoleARN: "arn:aws:iam::" + h.account.Number() + ":role/" + h.role(), InterruptionQueue: h.queue(),
		}},
	}}
}

// read reads the HostedCluster.
func (h *hosted) read(g Gomega, ctx context.Context) *v1beta1.HostedCluster {
	read := &v1beta1.HostedCluster{}
	g.Expect(h.management.Get(ctx, client.ObjectKey{Namespace: hosting.Namespace, Name: h.name}, read)).To(Succeed())
	return read
}

// patch changes the HostedCluster's spec.
func (h *hosted) patch(t *testing.T, change func(*v1beta1.HostedClusterSpec)) {
	t.Helper()
	g := NewWithT(t)
	read := h.read(g, t.Context())
	before := read.DeepCopy()
	change(&read.Spec)
	g.Expect(h.management.Patch(t.Context(), read, client.MergeFrom(before))).To(Succeed())
}

// is expects a condition of the HostedCluster.
func (h *hosted) is(g Gomega, ctx context.Context, kind string, status metav1.ConditionStatus) {
	read := h.read(g, ctx)
	found := meta.FindStatusCondition(read.Status.Conditions, kind)
	g.Expect(found).NotTo(BeNil())
	g.Expect(found.Status).To(Equal(status), "%s: %s", found.Reason, found.Message)
	g.Expect(found.ObservedGeneration).To(Equal(read.Generation))
}

// waitRuns waits until Karpenter of a payload runs and AutoNode reports it.
func (h *hosted) waitRuns(t *testing.T, release string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		h.is(g, ctx, v1beta1.AutoNodeEnabled, metav1.ConditionTrue)
		component := &v1beta1.ControlPlaneComponent{}
		g.Expect(h.management.Get(ctx, client.ObjectKey{Namespace: h.namespace(), Name: v1beta1.KarpenterComponent}, component)).To(Succeed())
		g.Expect(component.Status.Version).To(Equal(release))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// live are the cluster's instances that haven't ended, by their IDs.
func (h *hosted) live() map[string]ec2.Instance {
	live := map[string]ec2.Instance{}
	for _, i := range world.EC2().Instances() {
		if i.Tags["kubernetes.io/cluster/"+h.name] == "owned" && (i.State == ec2.Pending || i.State == ec2.Running) {
			live[i.ID] = i
		}
	}
	return live
}

// allNodes lists Karpenter's nodes.
func (h *hosted) allNodes(g Gomega, ctx context.Context) []corev1.Node {
	list := &corev1.NodeList{}
	g.Expect(h.guest.List(ctx, list, client.HasLabels{karpv1.NodePoolLabelKey})).To(Succeed())
	return list.Items
}

// claims are the UIDs of the NodeClaims by their names, marked where one is being deleted.
func (h *hosted) claims(g Gomega, ctx context.Context) map[string]string {
	list := &karpv1.NodeClaimList{}
	g.Expect(h.guest.List(ctx, list)).To(Succeed())
	claims := map[string]string{}
	for _, claim := range list.Items {
		claims[claim.Name] = string(claim.UID)
		if claim.DeletionTimestamp != nil {
			claims[claim.Name] += " is being deleted"
		}
	}
	return claims
}

// describeAccount writes down what a person would look at.
func (h *hosted) describeAccount(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	class := newEC2NodeClass()
	if err := h.guest.Get(ctx, client.ObjectKeyFromObject(class), class); err == nil {
		t.Logf("EC2NodeClass: %v", class.Object["status"])
	}
	t.Logf("HostedCluster: %+v", h.read(NewWithT(t), ctx).Status.Conditions)
	t.Logf("requests to AWS: %v\nrefused: %v\nunanswered: %v", h.account.Calls(), h.account.Refused(), world.EC2().Unanswered())
	for _, fleet := range world.EC2().Fleets() {
		t.Logf("fleet: %+v", fleet)
	}
	_ = filepath.WalkDir(world.PodLogDir(), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(path, h.namespace()) {
			return err
		}
		content, err := os.ReadFile(path)
		lines := strings.Split(string(content), "\n")
		t.Logf("%s:\n%s", path, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		return err
	})
}
