// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"os"
	"testing"

	"k8s.io/client-go/rest"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/ec2"
)

// The guests: a test has one for itself. Tests run one after the other, because quotas and faults are the account's.
const (
	blue  = "blue"
	green = "green"
	red   = "red" // with platform AWS
)

// Capacity reservations: of the guest with platform AWS, and of a catalog.
const (
	reservation = "cr-0red"
	booked      = "cr-0booked"
)

// world is that of all tests.
var world *localworld.World

func TestMain(m *testing.M) {
	region := ec2.Sample("v"+localworld.InitialRelease, "v"+localworld.UpgradedRelease)
	region.Reservations = append(region.Reservations,
		ec2.CapacityReservation{ID: reservation, Type: "m5.xlarge", Zone: zoneB, Total: 1, Targeted: true},
		ec2.CapacityReservation{ID: booked, Type: "c5.large", Zone: zoneB, Total: 1, Targeted: true})
	config := localworld.Config{Guests: []string{blue, green, red}, AWS: &region, Audit: true, Infrastructure: localworld.InfrastructureAWS}
	os.Exit(localworld.RunTests(m, "aws", config, &world, func() (wrong []string) {
		for _, missing := range world.EC2().Unanswered() {
			wrong = append(wrong, "EC2 was asked for what the stand-in can't: "+missing)
		}
		return wrong
	}))
}

func newClient(config *rest.Config) (client.WithWatch, error) {
	return localworld.NewClient(config, bootstrapv1.AddToScheme)
}
