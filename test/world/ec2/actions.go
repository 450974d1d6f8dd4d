// SPDX-License-Identifier: Apache-2.0

package ec2

// action answers a request, with a structure that encoding/xml writes as the answer's content, or with an *Error. The server's lock is
// held.
type action func(*Server, Params) (any, error)

// actions is the list of all that is answered.
var actions = map[string]action{
	"CreateFleet":                       (*Server).createFleet,
	"CreateLaunchTemplate":              (*Server).createLaunchTemplate,
	"DeleteLaunchTemplate":              (*Server).deleteLaunchTemplate,
	"DescribeInstanceStatus":            (*Server).describeInstanceStatus,
	"DescribeLaunchTemplates":           (*Server).describeLaunchTemplates,
	"CreateTags":                        (*Server).createTags,
	"DeleteTags":                        (*Server).deleteTags,
	"DescribeAvailabilityZones":         (*Server).describeAvailabilityZones,
	"DescribeCapacityReservations":      (*Server).describeCapacityReservations,
	"DescribeDhcpOptions":               (*Server).describeDhcpOptions,
	"DescribeImages":                    (*Server).describeImages,
	"DescribeInstances":                 (*Server).describeInstances,
	"DescribeInstanceTypeOfferings":     (*Server).describeInstanceTypeOfferings,
	"DescribeInstanceTypes":             (*Server).describeInstanceTypes,
	"DescribeNetworkInterfaceAttribute": (*Server).describeNetworkInterfaceAttribute,
	"DescribeNetworkInterfaces":         (*Server).describeNetworkInterfaces,
	"DescribeSecurityGroups":            (*Server).describeSecurityGroups,
	"DescribeSpotPriceHistory":          (*Server).describeSpotPriceHistory,
	"DescribeSubnets":                   (*Server).describeSubnets,
	"DescribeVpcs":                      (*Server).describeVpcs,
	"ModifyInstanceMetadataOptions":     (*Server).modifyInstanceMetadataOptions,
	"ModifyNetworkInterfaceAttribute":   (*Server).modifyNetworkInterfaceAttribute,
	"RunInstances":                      (*Server).runInstances,
	"TerminateInstances":                (*Server).terminateInstances,
}

// done is the answer of actions that have nothing to say.
type done struct {
	Return bool `xml:"return"`
}
