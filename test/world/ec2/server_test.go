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

// TestRefusals is about those that TestFailures of test/aws doesn't meet.
func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*ec2.RunInstancesInput)
		code   string
	}{
		"When a spot price is too low, it should say so": {
			change: func(input *ec2.RunInstancesInput) {
				input.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{
					MarketType: types.MarketTypeSpot, SpotOptions: &types.SpotMarketOptions{MaxPrice: aws.String("0.001")},
				}
			},
			code: "SpotMaxPriceTooLow",
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
			_, err := run(t.Context(), client, tc.change)
			g.Expect(code(err)).To(Equal(tc.code), "%v", err)
			g.Expect(s.Instances()).To(BeEmpty())
			g.Expect(s.Unanswered()).To(BeEmpty())
			g.Expect(s.Calls("RunInstances")).To(HaveExactElements(HaveField("Code", tc.code)))
		})
	}

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
