// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"encoding/base64"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	. "github.com/onsi/gomega"
)

const zoneA, zoneB = "us-east-1a", "us-east-1b"

// start starts a stand-in with a bit of everything, and a client of the SDK that doesn't retry.
func start(t *testing.T, change func(*Config)) (*Server, *ec2.Client) {
	t.Helper()
	config := Config{
		AccessKeys: []string{"AKIDWORLD"},
		Zones:      []Zone{{zoneA, "use1-az1"}, {zoneB, "use1-az2"}},
		Types: []InstanceType{
			{Name: "m5.large", VCPUs: 2, MemoryMiB: 8192, OnDemandPrice: 0.096, SpotPrice: map[string]float64{zoneA: 0.03, zoneB: 0.035}},
			{Name: "m6g.large", VCPUs: 2, MemoryMiB: 8192, Architecture: "arm64", Zones: []string{zoneA}, OnDemandPrice: 0.077},
		},
		Images: []Image{
			{ID: "ami-1", Name: "capa-ami-ubuntu-24.04-v1.36.3-1", Created: time.Unix(1, 0)},
			{ID: "ami-2", Name: "arm", Architecture: "arm64", Owner: "999999999999"},
		},
		VPCs: []VPC{{ID: "vpc-1", CIDR: netip.MustParsePrefix("10.0.0.0/16")}},
		Subnets: []Subnet{
			{ID: "subnet-a", VPC: "vpc-1", Zone: zoneA, CIDR: netip.MustParsePrefix("10.0.0.0/24"), Tags: Tags{"tier": "nodes"}},
			{ID: "subnet-b", VPC: "vpc-1", Zone: zoneB, CIDR: netip.MustParsePrefix("10.0.1.0/29")},
		},
		SecurityGroups: []SecurityGroup{{ID: "sg-1", Name: "nodes", VPC: "vpc-1"}, {ID: "sg-2", Name: "more", VPC: "vpc-1"}},
		Reservations:   []CapacityReservation{{ID: "cr-1", Type: "m5.large", Zone: zoneA, Total: 1, Targeted: true}},
		PendingDelay:   -1, StopDelay: -1,
	}
	if change != nil {
		change(&config)
	}
	g := NewWithT(t)
	s, err := Start(t.Context(), config)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(s.Close()).To(Succeed()) })
	return s, newClient(s, "AKIDWORLD")
}

func newClient(s *Server, key string) *ec2.Client {
	return ec2.New(ec2.Options{
		Region: s.Region(), BaseEndpoint: aws.String(s.URL()), Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""),
	})
}

// run has one m5.large launched in zone a.
func run(ctx context.Context, client *ec2.Client, change func(*ec2.RunInstancesInput)) (*types.Instance, error) {
	input := &ec2.RunInstancesInput{
		InstanceType: "m5.large", ImageId: aws.String("ami-1"), MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		UserData: aws.String(base64.StdEncoding.EncodeToString([]byte("#cloud-config\n"))),
		NetworkInterfaces: []types.InstanceNetworkInterfaceSpecification{{
			DeviceIndex: aws.Int32(0), SubnetId: aws.String("subnet-a"), Groups: []string{"sg-1"},
		}},
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeInstance, Tags: []types.Tag{{Key: aws.String("Name"), Value: aws.String("web")}},
		}},
	}
	if change != nil {
		change(input)
	}
	out, err := client.RunInstances(ctx, input)
	if err != nil {
		return nil, err
	}
	return &out.Instances[0], nil
}

// code returns the code of an API's error.
func code(err error) string {
	var failed smithy.APIError
	if !errors.As(err, &failed) {
		return ""
	}
	return failed.ErrorCode()
}

func TestInstances(t *testing.T) {
	t.Run("When an instance is run, it should be as it was asked for, boot its user data, and end when it is terminated", func(t *testing.T) {
		g := NewWithT(t)
		booted, ended := make(chan Instance, 1), make(chan struct{})
		s, client := start(t, func(config *Config) {
			config.Boot = func(ctx context.Context, instance Instance) {
				booted <- instance
				<-ctx.Done()
				close(ended)
			}
		})
		launched, err := run(t.Context(), client, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(*launched.SubnetId).To(Equal("subnet-a"))
		g.Expect(*launched.Placement.AvailabilityZone).To(Equal(zoneA))
		g.Expect(*launched.PrivateDnsName).To(Equal("ip-10-0-0-4.ec2.internal"))
		g.Expect(launched.Tags).To(ConsistOf(types.Tag{Key: aws.String("Name"), Value: aws.String("web")}))
		g.Expect(launched.SecurityGroups).To(HaveLen(1))
		var instance Instance
		g.Eventually(booted).Should(Receive(&instance))
		g.Expect(string(instance.UserData)).To(Equal("#cloud-config\n"))

		described := func() *types.Instance {
			out, err := client.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{
				Filters: []types.Filter{{Name: aws.String("tag:Name"), Values: []string{"w*"}}},
			})
			g.Expect(err).NotTo(HaveOccurred())
			return &out.Reservations[0].Instances[0]
		}
		g.Expect(described().State.Name).To(Equal(types.InstanceStateNameRunning))
		_, err = client.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{*launched.InstanceId}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(ended).Should(BeClosed())
		g.Eventually(func() types.InstanceStateName { return described().State.Name }).Should(Equal(types.InstanceStateNameTerminated))
		g.Expect(*described().StateReason.Code).To(Equal("Client.UserInitiatedShutdown"))
		g.Expect(s.Unanswered()).To(BeEmpty())
	})

	t.Run("When a request is sent again with its token, it should launch nothing more", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		token := func(input *ec2.RunInstancesInput) { input.ClientToken = aws.String("once") }
		first, err := run(t.Context(), client, token)
		g.Expect(err).NotTo(HaveOccurred())
		second, err := run(t.Context(), client, token)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(*second.InstanceId).To(Equal(*first.InstanceId))
		g.Expect(s.Instances()).To(HaveLen(1))
		_, err = run(t.Context(), client, func(input *ec2.RunInstancesInput) { token(input); input.ImageId = aws.String("ami-2") })
		g.Expect(code(err)).To(Equal("IdempotentParameterMismatch"))
	})

	t.Run("When a spot instance is reclaimed, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		spot, err := run(t.Context(), client, func(input *ec2.RunInstancesInput) {
			input.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot}
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(spot.InstanceLifecycle).To(Equal(types.InstanceLifecycleTypeSpot))
		g.Expect(s.Reclaim(*spot.InstanceId)).To(Succeed())
		g.Eventually(func() State { return s.Instances()[0].State }).Should(Equal(Terminated))
		g.Expect(s.Instances()[0].ReasonCode).To(Equal("Server.SpotInstanceTermination"))
		g.Expect(s.Reclaim("i-1")).To(MatchError(ContainSubstring("InvalidInstanceID.NotFound")))
	})

	t.Run("When a reservation is full, it should be refused, and an open one should be used by itself", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, func(config *Config) {
			config.Reservations = append(config.Reservations, CapacityReservation{ID: "cr-2", Type: "m5.large", Zone: zoneA, Total: 1})
		})
		targeted := func(input *ec2.RunInstancesInput) {
			input.CapacityReservationSpecification = &types.CapacityReservationSpecification{
				CapacityReservationTarget: &types.CapacityReservationTarget{CapacityReservationId: aws.String("cr-1")},
			}
		}
		_, err := run(t.Context(), client, targeted)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = run(t.Context(), client, targeted)
		g.Expect(code(err)).To(Equal("ReservationCapacityExceeded"))
		for range 2 {
			_, err = run(t.Context(), client, nil)
			g.Expect(err).NotTo(HaveOccurred())
		}
		var used []string
		for _, i := range s.Instances() {
			used = append(used, i.CapacityReservation)
		}
		g.Expect(used).To(Equal([]string{"cr-1", "cr-2", ""}))
		out, err := client.DescribeCapacityReservations(t.Context(), &ec2.DescribeCapacityReservationsInput{CapacityReservationIds: []string{"cr-1"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(*out.CapacityReservations[0].AvailableInstanceCount).To(BeZero())
	})
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*Server)
		change  func(*ec2.RunInstancesInput)
		code    string
	}{
		"When a zone has no capacity of a type, it should say so": {
			prepare: func(s *Server) {
				s.Inject(Fault{InstanceType: "m5.large", Zone: zoneA, Error: InsufficientInstanceCapacity("m5.large", zoneA)})
			},
			code: "InsufficientInstanceCapacity",
		},
		"When there are too many requests, it should say so": {
			prepare: func(s *Server) { s.Inject(Fault{Error: RequestLimitExceeded()}) },
			code:    "RequestLimitExceeded",
		},
		"When the quota of vCPUs is exhausted, it should say so": {
			prepare: func(s *Server) { s.SetVCPULimit(false, 1) },
			code:    "VcpuLimitExceeded",
		},
		"When a spot price is too low, it should say so": {
			change: func(input *ec2.RunInstancesInput) {
				input.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{
					MarketType: types.MarketTypeSpot, SpotOptions: &types.SpotMarketOptions{MaxPrice: aws.String("0.001")},
				}
			},
			code: "SpotMaxPriceTooLow",
		},
		"When a type isn't sold in a zone, it should say so": {
			change: func(input *ec2.RunInstancesInput) {
				input.InstanceType, input.ImageId = "m6g.large", aws.String("ami-2")
				input.NetworkInterfaces[0].SubnetId = aws.String("subnet-b")
			},
			code: "Unsupported",
		},
		"When an image doesn't exist, it should say so": {
			change: func(input *ec2.RunInstancesInput) { input.ImageId = aws.String("ami-9") },
			code:   "InvalidAMIID.NotFound",
		},
		"When an image is of another architecture, it should say so": {
			change: func(input *ec2.RunInstancesInput) { input.ImageId = aws.String("ami-2") },
			code:   "InvalidParameterValue",
		},
		"When a subnet has no addresses left, it should launch none of those that must be": {
			change: func(input *ec2.RunInstancesInput) {
				input.NetworkInterfaces[0].SubnetId = aws.String("subnet-b")
				input.MinCount, input.MaxCount = aws.Int32(4), aws.Int32(4)
			},
			code: "InsufficientFreeAddressesInSubnet",
		},
		"When it is only tried, it should launch nothing": {
			change: func(input *ec2.RunInstancesInput) { input.DryRun = aws.Bool(true) },
			code:   "DryRunOperation",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s, client := start(t, nil)
			if tc.prepare != nil {
				tc.prepare(s)
			}
			_, err := run(t.Context(), client, tc.change)
			g.Expect(code(err)).To(Equal(tc.code), "%v", err)
			g.Expect(s.Instances()).To(BeEmpty())
			g.Expect(s.Unanswered()).To(BeEmpty())
			g.Expect(s.Calls("RunInstances")).To(HaveExactElements(HaveField("Code", tc.code)))
		})
	}

	t.Run("When a fault is for a number of times, it should be over then", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		end := s.Inject(Fault{Error: RequestLimitExceeded(), Times: 1})
		_, err := run(t.Context(), client, nil)
		g.Expect(code(err)).To(Equal("RequestLimitExceeded"))
		_, err = run(t.Context(), client, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(end()).To(Equal(1))
	})

	t.Run("When something isn't implemented, it should be an error that is remembered", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		_, err := client.CreateVpc(t.Context(), &ec2.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")})
		g.Expect(code(err)).To(Equal("InvalidAction"))
		_, err = client.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{Filters: []types.Filter{{Name: aws.String("odd"), Values: []string{"x"}}}})
		g.Expect(code(err)).To(Equal("InvalidParameterValue"))
		_, err = run(t.Context(), client, func(input *ec2.RunInstancesInput) { input.Placement = &types.Placement{Tenancy: types.TenancyHost} })
		g.Expect(code(err)).To(Equal("UnknownParameter"))
		g.Expect(s.Unanswered()).To(ConsistOf(HavePrefix("CreateVpc: "), HavePrefix("DescribeSubnets: "), HavePrefix("RunInstances: ")))
	})

	t.Run("When a request is signed by an unknown key, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		s, _ := start(t, nil)
		_, err := run(t.Context(), newClient(s, "AKIDOTHER"), nil)
		g.Expect(code(err)).To(Equal("AuthFailure"))
		s.AllowAccessKey("AKIDOTHER")
		_, err = run(t.Context(), newClient(s, "AKIDOTHER"), nil)
		g.Expect(err).NotTo(HaveOccurred())
	})
}

func TestDescribe(t *testing.T) {
	t.Run("When types are asked for, they should say what instances have", func(t *testing.T) {
		g := NewWithT(t)
		_, client := start(t, nil)
		out, err := client.DescribeInstanceTypes(t.Context(), &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"m6g.large"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out.InstanceTypes).To(HaveLen(1))
		info := out.InstanceTypes[0]
		g.Expect(*info.VCpuInfo.DefaultVCpus).To(BeEquivalentTo(2))
		g.Expect(*info.MemoryInfo.SizeInMiB).To(BeEquivalentTo(8192))
		g.Expect(info.ProcessorInfo.SupportedArchitectures).To(Equal([]types.ArchitectureType{types.ArchitectureTypeArm64}))
		g.Expect(info.NetworkInfo.NetworkCards).To(HaveLen(1))
		_, err = client.DescribeInstanceTypes(t.Context(), &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"x9.huge"}})
		g.Expect(code(err)).To(Equal("InvalidInstanceType"))
		offerings, err := client.DescribeInstanceTypeOfferings(t.Context(), &ec2.DescribeInstanceTypeOfferingsInput{LocationType: types.LocationTypeAvailabilityZone})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(offerings.InstanceTypeOfferings).To(HaveLen(3))
	})

	t.Run("When images are asked for by name and owner, they should be found", func(t *testing.T) {
		g := NewWithT(t)
		_, client := start(t, nil)
		out, err := client.DescribeImages(t.Context(), &ec2.DescribeImagesInput{
			Owners:  []string{"self"},
			Filters: []types.Filter{{Name: aws.String("name"), Values: []string{"capa-ami-ubuntu-24.04-?1.36.3-*"}}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out.Images).To(HaveLen(1))
		g.Expect(*out.Images[0].BlockDeviceMappings[0].Ebs.VolumeSize).To(BeEquivalentTo(8))
		out, err = client.DescribeImages(t.Context(), &ec2.DescribeImagesInput{Owners: []string{"999999999999"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out.Images).To(HaveExactElements(HaveField("Architecture", types.ArchitectureValuesArm64)))
	})

	t.Run("When zones, subnets, groups and spot prices are asked for, they should be there", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		zones, err := client.DescribeAvailabilityZones(t.Context(), &ec2.DescribeAvailabilityZonesInput{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(zones.AvailabilityZones).To(HaveLen(2))
		subnets, err := client.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{
			Filters: []types.Filter{{Name: aws.String("tag:tier"), Values: []string{"nodes"}}, {Name: aws.String("state"), Values: []string{"available"}}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(subnets.Subnets).To(HaveLen(1))
		g.Expect(*subnets.Subnets[0].AvailableIpAddressCount).To(BeEquivalentTo(251))
		g.Expect(*subnets.Subnets[0].AvailabilityZoneId).To(Equal("use1-az1"))
		groups, err := client.DescribeSecurityGroups(t.Context(), &ec2.DescribeSecurityGroupsInput{GroupIds: []string{"sg-1"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(groups.SecurityGroups).To(HaveLen(1))
		vpcs, err := client.DescribeVpcs(t.Context(), &ec2.DescribeVpcsInput{VpcIds: []string{"vpc-1"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(vpcs.Vpcs).To(HaveExactElements(HaveField("CidrBlock", aws.String("10.0.0.0/16"))))
		options, err := client.DescribeDhcpOptions(t.Context(), &ec2.DescribeDhcpOptionsInput{DhcpOptionsIds: []string{*vpcs.Vpcs[0].DhcpOptionsId}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(*options.DhcpOptions[0].DhcpConfigurations[0].Values[0].Value).To(Equal("ec2.internal"))
		s.SetSpotPrice("m5.large", zoneB, 0)
		prices, err := client.DescribeSpotPriceHistory(t.Context(), &ec2.DescribeSpotPriceHistoryInput{InstanceTypes: []types.InstanceType{"m5.large"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(prices.SpotPriceHistory).To(HaveExactElements(HaveField("AvailabilityZone", aws.String(zoneA))))
	})

	t.Run("When metadata options are given and changed, they should be those", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		instance, err := run(t.Context(), client, func(input *ec2.RunInstancesInput) {
			input.MetadataOptions = &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired}
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(instance.MetadataOptions.HttpTokens).To(Equal(types.HttpTokensStateRequired))
		_, err = client.ModifyInstanceMetadataOptions(t.Context(), &ec2.ModifyInstanceMetadataOptionsInput{
			InstanceId: instance.InstanceId, HttpPutResponseHopLimit: aws.Int32(2), InstanceMetadataTags: types.InstanceMetadataTagsStateEnabled,
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.Instances()[0].Metadata).To(Equal(MetadataOptions{Tokens: "required", Endpoint: "enabled", Tags: "enabled", HopLimit: 2}))
	})

	t.Run("When tags and security groups are changed, they should be", func(t *testing.T) {
		g := NewWithT(t)
		s, client := start(t, nil)
		instance, err := run(t.Context(), client, nil)
		g.Expect(err).NotTo(HaveOccurred())
		interfaces, err := client.DescribeNetworkInterfaces(t.Context(), &ec2.DescribeNetworkInterfacesInput{
			Filters: []types.Filter{{Name: aws.String("attachment.instance-id"), Values: []string{*instance.InstanceId}}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(interfaces.NetworkInterfaces).To(HaveLen(1))
		id := interfaces.NetworkInterfaces[0].NetworkInterfaceId
		_, err = client.CreateTags(t.Context(), &ec2.CreateTagsInput{
			Resources: []string{*instance.InstanceId, *id}, Tags: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = client.DeleteTags(t.Context(), &ec2.DeleteTagsInput{Resources: []string{*instance.InstanceId}, Tags: []types.Tag{{Key: aws.String("Name")}}})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = client.ModifyNetworkInterfaceAttribute(t.Context(), &ec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: id, Groups: []string{"sg-2"}})
		g.Expect(err).NotTo(HaveOccurred())
		changed := s.Instances()[0]
		g.Expect(changed.Tags).To(Equal(Tags{"a": "b"}))
		g.Expect(changed.NetworkInterfaceTags).To(Equal(Tags{"a": "b"}))
		g.Expect(changed.SecurityGroups).To(Equal([]string{"sg-2"}))
	})
}
