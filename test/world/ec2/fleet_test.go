// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"

	worldaws "github.com/autonode-io/autonode/test/world/aws"
)

// createTemplate makes a launch template as Karpenter's AWS provider does.
func createTemplate(ctx context.Context, client *ec2.Client, change func(*types.RequestLaunchTemplateData)) error {
	data := &types.RequestLaunchTemplateData{
		ImageId: aws.String("ami-1"), UserData: aws.String(base64.StdEncoding.EncodeToString([]byte("#cloud-config\n"))),
		IamInstanceProfile: &types.LaunchTemplateIamInstanceProfileSpecificationRequest{Name: aws.String("nodes")},
		NetworkInterfaces:  []types.LaunchTemplateInstanceNetworkInterfaceSpecificationRequest{{DeviceIndex: aws.Int32(0), Groups: []string{"sg-1"}}},
		Placement:          &types.LaunchTemplatePlacementRequest{Tenancy: types.TenancyDefault},
		MetadataOptions:    &types.LaunchTemplateInstanceMetadataOptionsRequest{HttpTokens: types.LaunchTemplateHttpTokensStateRequired},
	}
	if change != nil {
		change(data)
	}
	_, err := client.CreateLaunchTemplate(ctx, &ec2.CreateLaunchTemplateInput{
		LaunchTemplateName: aws.String("karpenter.k8s.aws/1"), LaunchTemplateData: data,
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeLaunchTemplate, Tags: []types.Tag{{Key: aws.String("eks:eks-cluster-name"), Value: aws.String("blue")}}}},
	})
	return err
}

// pools are overrides of type and subnet, each in its zone.
func pools(pairs ...string) []types.FleetLaunchTemplateOverridesRequest {
	zones := map[string]string{"subnet-a": zoneA, "subnet-b": zoneB}
	var overrides []types.FleetLaunchTemplateOverridesRequest
	for _, pair := range pairs {
		instanceType, subnet, _ := strings.Cut(pair, "/")
		overrides = append(overrides, types.FleetLaunchTemplateOverridesRequest{
			InstanceType: types.InstanceType(instanceType), SubnetId: &subnet, AvailabilityZone: aws.String(zones[subnet]), ImageId: aws.String("ami-1"),
		})
	}
	return overrides
}

func createFleet(ctx context.Context, client *ec2.Client, capacity string, overrides []types.FleetLaunchTemplateOverridesRequest) (*ec2.CreateFleetOutput, error) {
	return client.CreateFleet(ctx, &ec2.CreateFleetInput{
		Type: types.FleetTypeInstant,
		LaunchTemplateConfigs: []types.FleetLaunchTemplateConfigRequest{{
			LaunchTemplateSpecification: &types.FleetLaunchTemplateSpecificationRequest{LaunchTemplateName: aws.String("karpenter.k8s.aws/1"), Version: aws.String("$Latest")},
			Overrides:                   overrides,
		}},
		TargetCapacitySpecification: &types.TargetCapacitySpecificationRequest{
			DefaultTargetCapacityType: types.DefaultTargetCapacityType(capacity), TotalTargetCapacity: aws.Int32(1),
		},
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance, Tags: []types.Tag{{Key: aws.String("Name"), Value: aws.String("web")}}}},
	})
}

func TestCreateFleet(t *testing.T) {
	t.Run("When no pool can be had, there should be errors and no instance, and the request should succeed", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		g.Expect(createTemplate(t.Context(), client, nil)).To(Succeed())
		s.SetVCPULimit(false, 1)
		out, err := createFleet(t.Context(), client, "on-demand", pools("m5.large/subnet-a", "m5.large/subnet-b"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out.Instances).To(BeEmpty())
		g.Expect(out.Errors).To(HaveEach(HaveField("ErrorCode", HaveValue(Equal("VcpuLimitExceeded")))))
		g.Expect(s.Instances()).To(BeEmpty())
	})

	t.Run("When what the request names doesn't exist, it should fail as a whole", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		s.CheckInstanceProfiles(func(name string) bool { return name == "others" })
		_, err := createFleet(t.Context(), client, "on-demand", pools("m5.large/subnet-a"))
		g.Expect(code(err)).To(Equal("InvalidLaunchTemplateName.NotFoundException"))
		g.Expect(createTemplate(t.Context(), client, nil)).To(Succeed())
		_, err = createFleet(t.Context(), client, "on-demand", pools("m5.large/subnet-a"))
		g.Expect(err).To(MatchError(ContainSubstring("Invalid IAM Instance Profile name")))
		_, err = createFleet(t.Context(), client, "capacity-block", pools("m5.large/subnet-a"))
		g.Expect(code(err)).To(Equal("InvalidParameterValue"))
		g.Expect(s.Unanswered()).To(HaveLen(1))
	})

	t.Run("When it is a dry run, nothing should be launched", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		_, err := client.CreateFleet(t.Context(), &ec2.CreateFleetInput{
			DryRun: aws.Bool(true), LaunchTemplateConfigs: []types.FleetLaunchTemplateConfigRequest{{}}, TargetCapacitySpecification: &types.TargetCapacitySpecificationRequest{TotalTargetCapacity: aws.Int32(1)},
		})
		g.Expect(code(err)).To(Equal("DryRunOperation"))
		g.Expect(s.Fleets()).To(BeEmpty())
	})
}

func TestLaunchTemplates(t *testing.T) {
	t.Run("When user data is longer than EC2 allows, it should be refused", func(t *testing.T) {
		_, client := start(t, nil)
		err := createTemplate(t.Context(), client, func(d *types.RequestLaunchTemplateData) {
			d.UserData = aws.String(base64.StdEncoding.EncodeToString(make([]byte, 16<<10+1)))
		})
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("User data is limited to 16384 bytes")))
	})
}

func TestDemands(t *testing.T) {
	g := NewWithT(t)
	s, client := start(t, nil)
	g.Expect(createTemplate(t.Context(), client, nil)).To(Succeed())
	i, err := run(t.Context(), client, nil)
	g.Expect(err).NotTo(HaveOccurred())
	of := func(action string, pairs ...string) (actions []string, keys map[string]string) {
		form := url.Values{}
		for n := 0; n < len(pairs); n += 2 {
			form.Set(pairs[n], pairs[n+1])
		}
		for _, demand := range s.Demands(action, form, func(profile string) worldaws.Demand { return worldaws.Demand{Action: "iam:PassRole/" + profile} }) {
			actions = append(actions, demand.Action)
			keys = demand.Keys
		}
		return actions, keys
	}
	t.Run("When something is only read, it should be one action", func(t *testing.T) {
		actions, _ := of("DescribeInstances")
		NewWithT(t).Expect(actions).To(Equal([]string{"ec2:DescribeInstances"}))
	})
	t.Run("When a fleet is made, it should be all that a fleet does", func(t *testing.T) {
		actions, _ := of("CreateFleet", "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName", "karpenter.k8s.aws/1", "TagSpecification.1.ResourceType", "instance")
		NewWithT(t).Expect(actions).To(Equal([]string{"ec2:CreateFleet", "ec2:RunInstances", "iam:PassRole/nodes", "ec2:CreateTags"}))
	})
	t.Run("When an instance is terminated, its tags should count", func(t *testing.T) {
		actions, keys := of("TerminateInstances", "InstanceId.1", *i.InstanceId)
		g := NewWithT(t)
		g.Expect(actions).To(Equal([]string{"ec2:TerminateInstances"}))
		g.Expect(keys).To(HaveKeyWithValue("aws:ResourceTag/Name", "web"))
	})
}
