// SPDX-License-Identifier: Apache-2.0

package aws_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
)

const group = "infrastructure.cluster.x-k8s.io"

// infrastructure is a client.Reader of one AWSCluster, which counts, and of the Deployment.
type infrastructure struct {
	spec  map[string]any // nil for none
	runs  *appsv1.Deployment
	err   error
	reads int
}

func (i *infrastructure) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if deployment, ok := into.(*appsv1.Deployment); ok {
		if key != (client.ObjectKey{Namespace: "clusters-blue", Name: "karpenter"}) {
			return errors.New("unexpected Deployment")
		}
		if i.runs == nil {
			return apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "deployments"}, key.Name)
		}
		*deployment = *i.runs
		return nil
	}
	i.reads++
	object, ok := into.(*unstructured.Unstructured)
	switch {
	case !ok || key != client.ObjectKey{Namespace: "clusters-blue", Name: "blue-aws"}:
		return errors.New("unexpected object")
	case i.err != nil:
		return i.err
	case i.spec == nil:
		return apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: "awsclusters"}, key.Name)
	}
	object.Object["spec"] = i.spec
	return nil
}

func (*infrastructure) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("nothing is to be listed")
}

func input(reader client.Reader) provider.Input {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: group, Version: "v1beta2"}})
	mapper.Add(schema.GroupVersionKind{Group: group, Version: "v1beta2", Kind: "AWSCluster"}, meta.RESTScopeNamespace)
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue", UID: "1"}}
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: "AWSCluster", Name: "blue-aws"}
	return provider.Input{
		Namespace: "clusters-blue", ClusterName: "blue", Names: v1beta1.DedicatedNames(), Cluster: cluster, Reader: reader, Mapper: mapper,
		Config:   &v1beta1.Karpenter{Platform: v1beta1.PlatformAWS, AWS: &v1beta1.AWS{RoleARN: "arn:aws:iam::123456789012:role/karpenter"}},
		Endpoint: "https://10.0.0.1:6443",
	}
}

func TestCheckCluster(t *testing.T) {
	frankfurt := map[string]any{"region": "eu-central-1"}
	// inFrankfurt is what runs with that.
	inFrankfurt, err := aws.New().Deployment()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(aws.New().AdaptDeployment(t.Context(), input(&infrastructure{spec: frankfurt}), inFrankfurt)).To(Succeed())
	for _, test := range []struct {
		name    string
		reader  infrastructure
		change  func(*provider.Input)
		reason  string
		message string
	}{
		{
			name: "When the Cluster's AWSCluster has a region, it should find nothing wrong", reader: infrastructure{spec: frankfurt},
		}, {
			name: "When the spec has a region, it should not look for one", reader: infrastructure{err: errors.New("must not be asked")},
			change: func(in *provider.Input) { in.Config.AWS.Region = "us-east-1" },
		}, {
			name: "When the spec names the region that Karpenter is in anyway, it should find nothing wrong", reader: infrastructure{runs: inFrankfurt},
			change: func(in *provider.Input) { in.Config.AWS.Region = "eu-central-1" },
		}, {
			name: "When Karpenter would be in another region than its instances, it should say in which they are", reader: infrastructure{runs: inFrankfurt},
			change: func(in *provider.Input) { in.Config.AWS.Region = "us-east-1" },
			reason: v1beta1.InvalidSpecReason,
			message: "spec.autoNode.provisionerConfig.karpenter.aws.region: Karpenter makes instances in eu-central-1, and wouldn't find them from us-east-1; set it to eu-central-1, " +
				"or remove spec.autoNode, wait until its nodes are gone, and set it again",
		}, {
			name: "When what runs doesn't say its region, it should find nothing wrong", reader: infrastructure{spec: frankfurt, runs: &appsv1.Deployment{}},
		}, {
			name: "When the Cluster is on other infrastructure, it should say on which, and what to do", reader: infrastructure{spec: frankfurt},
			change: func(in *provider.Input) { in.Cluster.Spec.InfrastructureRef.Kind = "VSphereCluster" },
			reason: v1beta1.InfrastructureMismatchReason,
			message: "spec.autoNode.provisionerConfig.karpenter.platform: AWS makes EC2 instances, but the infrastructure of Cluster clusters-blue/blue is a " +
				"VSphereCluster.infrastructure.cluster.x-k8s.io and no AWSCluster; use platform ClusterAPI, or correct spec.infraID",
		}, {
			name: "When the Cluster reports nothing about its infrastructure, it should say so",
			change: func(in *provider.Input) {
				in.Cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{}
			},
			reason:  v1beta1.InfrastructureMismatchReason,
			message: "but Cluster clusters-blue/blue has no infrastructureRef",
		}, {
			name: "When there is no AWSCluster, it should name it, and the field that does without", reason: v1beta1.InvalidSpecReason,
			message: "there is no AWSCluster clusters-blue/blue-aws, which would declare the region; create it, or set spec.autoNode.provisionerConfig.karpenter.aws.region",
		}, {
			name: "When the AWSCluster has no region, it should ask for it", reader: infrastructure{spec: map[string]any{}}, reason: v1beta1.InvalidSpecReason,
			message: "spec.region of AWSCluster clusters-blue/blue-aws names no region; set spec.autoNode.provisionerConfig.karpenter.aws.region",
		}, {
			name: "When the region isn't even a string, it should ask for it", reader: infrastructure{spec: map[string]any{"region": int64(1)}},
			reason: v1beta1.InvalidSpecReason, message: "names no region",
		}, {
			name:    "When the Cluster is of another kind of AWS's, it should ask for the region, because that kind has none",
			change:  func(in *provider.Input) { in.Cluster.Spec.InfrastructureRef.Kind = "AWSManagedCluster" },
			reason:  v1beta1.InvalidSpecReason,
			message: "aws.region is required: the infrastructure of Cluster clusters-blue/blue is of kind AWSManagedCluster, which declares no region",
		}, {
			name: "When the management cluster doesn't serve the kind, it should name it", reader: infrastructure{spec: frankfurt},
			change:  func(in *provider.Input) { in.Mapper = meta.NewDefaultRESTMapper(nil) },
			reason:  v1beta1.KindNotFoundReason,
			message: "the management cluster doesn't serve AWSCluster.infrastructure.cluster.x-k8s.io, which has the region; install its provider, or set",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			in := input(&test.reader)
			if test.change != nil {
				test.change(&in)
			}
			finding, err := aws.New().CheckCluster(t.Context(), in)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(finding.Reason).To(Equal(test.reason))
			g.Expect(finding.Message).To(ContainSubstring(test.message))
		})
	}

	t.Run("When the region was read once, it should not be read again, but for another Cluster", func(t *testing.T) {
		g := NewWithT(t)
		reader := &infrastructure{spec: frankfurt}
		profile := aws.New()
		for range 3 {
			_, err := profile.CheckCluster(t.Context(), input(reader))
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(reader.reads).To(Equal(1))
		other := input(reader)
		other.Cluster.UID = "2"
		_, err := profile.CheckCluster(t.Context(), other)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reader.reads).To(Equal(2))
	})

	t.Run("When the management cluster's API server fails, it should be an error and no finding", func(t *testing.T) {
		broken := errors.New("etcdserver: request timed out")
		_, err := aws.New().CheckCluster(t.Context(), input(&infrastructure{err: broken}))
		NewWithT(t).Expect(err).To(MatchError(broken))
	})
}

func TestCheckSpec(t *testing.T) {
	for name, test := range map[string]struct{ aws, want any }{
		"When all is well, it should say nothing":                     {&v1beta1.AWS{RoleARN: "arn:aws-us-gov:iam::123456789012:role/path/karpenter"}, nil},
		"When the member is missing, it should ask for it":            {(*v1beta1.AWS)(nil), "aws is required when platform is AWS"},
		"When the role is none, it should say what one looks like":    {&v1beta1.AWS{RoleARN: "karpenter"}, `aws.roleARN: "karpenter" isn't the ARN of an IAM role, such as arn:aws:iam::123456789012:role/karpenter`},
		"When the role is another thing's ARN, it should say so, too": {&v1beta1.AWS{RoleARN: "arn:aws:iam::123456789012:user/karpenter"}, `"arn:aws:iam::123456789012:user/karpenter" isn't the ARN of an IAM role`},
	} {
		t.Run(name, func(t *testing.T) {
			err := aws.New().CheckSpec(&v1beta1.Karpenter{Platform: v1beta1.PlatformAWS, AWS: test.aws.(*v1beta1.AWS)})
			if test.want == nil {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
			} else {
				NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want.(string))))
			}
		})
	}
}

func TestVariables(t *testing.T) {
	variables := func(g Gomega, in provider.Input) map[string]string {
		profile := aws.New()
		deployment, err := profile.Deployment()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(profile.AdaptDeployment(t.Context(), in, deployment)).To(Succeed())
		values := map[string]string{}
		for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
			g.Expect(values).NotTo(HaveKey(variable.Name))
			g.Expect(variable).To(Equal(corev1.EnvVar{Name: variable.Name, Value: variable.Value}))
			values[variable.Name] = variable.Value
		}
		return values
	}
	reader := &infrastructure{spec: map[string]any{"region": "eu-central-1"}}

	t.Run("When nodes can join by the Cluster's endpoint, it should be that, because the operator's may be inside, with the CA and the queue that there are", func(t *testing.T) {
		g := NewWithT(t)
		in := input(reader)
		in.Cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "blue.example", Port: 443}
		in.CA, in.Config.AWS.InterruptionQueue = []byte("certificates"), "blue-events"
		g.Expect(variables(g, in)).To(And(
			HaveKeyWithValue("CLUSTER_ENDPOINT", "https://blue.example:443"), HaveKeyWithValue("CLUSTER_NAME", "blue"), HaveKeyWithValue("AWS_REGION", "eu-central-1"),
			HaveKeyWithValue("CLUSTER_CA_BUNDLE", "Y2VydGlmaWNhdGVz"), HaveKeyWithValue("INTERRUPTION_QUEUE", "blue-events"),
		))
	})

	t.Run("When the Cluster has none, it should be the connection's", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(variables(g, input(reader))).To(And(
			HaveKeyWithValue("CLUSTER_ENDPOINT", "https://10.0.0.1:6443"),
			Not(HaveKey("CLUSTER_CA_BUNDLE")), Not(HaveKey("INTERRUPTION_QUEUE")),
		))
	})

	t.Run("When a value looks like a variable, it should be kept from the kubelet, which would replace it", func(t *testing.T) {
		g := NewWithT(t)
		in := input(reader)
		in.Config.AWS.RoleARN = "arn:aws:iam::123456789012:role/$(AWS_REGION)"
		g.Expect(variables(g, in)).To(HaveKeyWithValue("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/$$(AWS_REGION)"))
	})

	t.Run("When no node could join with the existing configuration, it should be an error", func(t *testing.T) {
		g := NewWithT(t)
		in := input(reader)
		in.Endpoint = "10.0.0.1:6443"
		profile := aws.New()
		deployment, err := profile.Deployment()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(profile.AdaptDeployment(t.Context(), in, deployment)).To(MatchError(ContainSubstring("set controlPlaneEndpoint of Cluster clusters-blue/blue")))
	})
}
