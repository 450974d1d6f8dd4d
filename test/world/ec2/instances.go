// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Launch is one instance that is asked for.
type Launch struct {
	Type, Image, Subnet string
	SecurityGroups      []string
	Spot                bool
	MaxPrice            string
	// CapacityReservation is the one that is named, and Preference open, none, capacity-reservations-only or "".
	CapacityReservation, Preference string
	InstanceProfile, KeyName        string
	// UserData is as it was sent, in base64.
	UserData string
	// RootGiB is the size of the root volume; 0 for that of the image.
	RootGiB                                int
	Metadata                               MetadataOptions
	Tags, NetworkInterfaceTags, VolumeTags Tags
}

// runParameters are the parameters of RunInstances that are understood, with those below them. Any other is unimplemented.
var runParameters = []string{
	"Action", "Version", "ClientToken", "DryRun", "InstanceType", "ImageId", "KeyName", "EbsOptimized", "MaxCount", "MinCount", "UserData",
	"SubnetId", "SecurityGroupId", "NetworkInterface", "IamInstanceProfile", "BlockDeviceMapping", "TagSpecification",
	"InstanceMarketOptions", "MetadataOptions", "PrivateDnsNameOptions", "CapacityReservationSpecification", "Monitoring",
}

func (s *Server) runInstances(p Params) (any, error) {
	for _, name := range p.Names() {
		if first, _, _ := strings.Cut(name, "."); !slices.Contains(runParameters, first) {
			return nil, unimplemented("UnknownParameter", "The parameter %s is not recognized", name)
		}
	}
	minimum, err := p.Int("MinCount", 1)
	if err != nil {
		return nil, err
	}
	count, err := p.Int("MaxCount", 1)
	if err != nil {
		return nil, err
	}
	if minimum < 1 || minimum > count {
		return nil, &Error{Code: "InvalidParameterValue", Message: "minCount and maxCount must be positive, and maxCount at least minCount"}
	}
	launch, err := readLaunch(p)
	if err != nil {
		return nil, err
	}
	var ids []string
	if ids, err = s.repeated(p); err == nil && ids == nil {
		reservation := newID("r")
		for len(ids) < count {
			id, launchErr := s.launch("RunInstances", reservation, launch)
			if launchErr != nil && len(ids) < minimum {
				s.undo(ids)
				return nil, launchErr
			} else if launchErr != nil {
				break
			}
			ids = append(ids, id)
		}
		s.remember(p, ids)
	}
	if err != nil {
		return nil, err
	}
	return s.reservationXML(ids), nil
}

// readLaunch reads the parameters of RunInstances.
func readLaunch(p Params) (Launch, error) {
	launch := Launch{
		Type: p.Get("InstanceType"), Image: p.Get("ImageId"), Subnet: p.Get("SubnetId"), SecurityGroups: p.List("SecurityGroupId"),
		KeyName: p.Get("KeyName"), InstanceProfile: p.Get("IamInstanceProfile.Name"), UserData: p.Get("UserData"),
		Tags: p.tags("instance"), NetworkInterfaceTags: p.tags("network-interface"), VolumeTags: p.tags("volume"),
		Preference:          p.Get("CapacityReservationSpecification.CapacityReservationPreference"),
		CapacityReservation: p.Get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"),
	}
	var err error
	if launch.Metadata, err = (MetadataOptions{"optional", "enabled", "disabled", 1}).with(p.Struct("MetadataOptions")); err != nil {
		return launch, err
	}
	for _, device := range p.Structs("BlockDeviceMapping") {
		size, err := device.Int("Ebs.VolumeSize", 0)
		if err != nil {
			return launch, err
		}
		if device.Get("DeviceName") == rootDevice {
			launch.RootGiB = size
		}
	}
	interfaces := p.Structs("NetworkInterface")
	switch {
	case len(interfaces) > 1, len(interfaces) == 1 && interfaces[0].Get("NetworkInterfaceId") != "":
		return launch, unimplemented("UnsupportedOperation", "Instances with several or with existing network interfaces aren't supported.")
	case len(interfaces) == 1:
		launch.Subnet, launch.SecurityGroups = interfaces[0].Get("SubnetId"), interfaces[0].List("SecurityGroupId")
	}
	switch market := p.Get("InstanceMarketOptions.MarketType"); market {
	case "":
	case "spot":
		options := p.Struct("InstanceMarketOptions.SpotOptions")
		launch.Spot, launch.MaxPrice = true, options.Get("MaxPrice")
		if kind := options.Get("SpotInstanceType"); kind != "" && kind != "one-time" {
			return launch, unimplemented("InvalidParameterValue", "Spot instances of the type %s aren't supported.", kind)
		}
		if behaviour := options.Get("InstanceInterruptionBehavior"); behaviour != "" && behaviour != "terminate" {
			return launch, unimplemented("InvalidParameterValue", "The interruption behavior %s isn't supported.", behaviour)
		}
	default:
		return launch, unimplemented("InvalidParameterValue", "The market type %s isn't supported.", market)
	}
	return launch, nil
}

// with returns the options with those that a request has.
func (m MetadataOptions) with(p Params) (MetadataOptions, error) {
	var err error
	m.Tokens, m.Endpoint, m.Tags = cmp.Or(p.Get("HttpTokens"), m.Tokens), cmp.Or(p.Get("HttpEndpoint"), m.Endpoint), cmp.Or(p.Get("InstanceMetadataTags"), m.Tags)
	m.HopLimit, err = p.Int("HttpPutResponseHopLimit", m.HopLimit)
	return m, err
}

func (s *Server) modifyInstanceMetadataOptions(p Params) (any, error) {
	id := p.Get("InstanceId")
	if err := s.mustExist([]string{id}); err != nil {
		return nil, err
	}
	i := s.instances[id]
	var err error
	if i.Metadata, err = i.Metadata.with(p); err != nil {
		return nil, err
	}
	return struct {
		ID      string      `xml:"instanceId"`
		Options metadataXML `xml:"instanceMetadataOptions"`
	}{i.ID, newMetadataXML(i.Metadata)}, nil
}

// repeated returns the instances that an earlier request with the same client token launched, nil where there was none.
func (s *Server) repeated(p Params) ([]string, error) {
	token := p.Get("ClientToken")
	known, ok := s.tokens[token]
	if token == "" || !ok {
		return nil, nil
	}
	if known.request != p.values.Encode() {
		return nil, &Error{Code: "IdempotentParameterMismatch", Message: "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."}
	}
	return known.instances, nil
}

// remember keeps what a request with a client token launched.
func (s *Server) remember(p Params, ids []string) {
	if token := p.Get("ClientToken"); token != "" {
		s.tokens[token] = launched{p.values.Encode(), ids}
	}
}

// undo takes back what a launch that fails as a whole has made so far.
func (s *Server) undo(ids []string) {
	for _, id := range ids {
		s.instances[id].stop(nil)
		delete(s.instances, id)
	}
}

// launch makes an instance and returns its ID. The error is that of action.
func (s *Server) launch(action, reservation string, l Launch) (string, error) {
	t, ok := s.types[l.Type]
	if !ok {
		return "", &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf("Invalid value '%s' for InstanceType.", l.Type)}
	}
	image, ok := s.images[l.Image]
	if !ok {
		return "", &Error{Code: "InvalidAMIID.NotFound", Message: fmt.Sprintf("The image id '[%s]' does not exist", l.Image)}
	}
	subnet, ok := s.subnets[l.Subnet]
	if !ok {
		return "", &Error{Code: "InvalidSubnetID.NotFound", Message: fmt.Sprintf("The subnet ID '%s' does not exist", l.Subnet)}
	}
	for _, group := range l.SecurityGroups {
		if _, ok := s.groups[group]; !ok {
			return "", &Error{Code: "InvalidGroup.NotFound", Message: fmt.Sprintf("The security group '%s' does not exist", group)}
		}
	}
	userData, err := base64.StdEncoding.DecodeString(l.UserData)
	if err != nil {
		return "", &Error{Code: "InvalidParameterValue", Message: "Invalid BASE64 encoding of user data."}
	}
	if len(userData) > 16<<10 {
		return "", &Error{Code: "InvalidParameterValue", Message: "User data is limited to 16384 bytes"}
	}
	switch {
	case image.Architecture != t.Architecture:
		return "", &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf(
			"The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI.", t.Architecture, image.Architecture)}
	case !t.soldIn(subnet.Zone):
		return "", &Error{Code: "Unsupported", Message: fmt.Sprintf(
			"Your requested instance type (%s) is not supported in your requested Availability Zone (%s).", t.Name, subnet.Zone)}
	}
	if err := s.fail(action, scope{true, t.Name, subnet.Zone, l.Spot}); err != nil {
		return "", err
	}
	if err := s.exceeds(t, l.Spot); err != nil {
		return "", err
	}
	if err := auction(t, subnet.Zone, l); err != nil {
		return "", err
	}
	capacity, err := s.reserve(t, subnet.Zone, l)
	if err != nil {
		return "", err
	}
	address, ok := s.address(subnet)
	if !ok {
		return "", &Error{Code: "InsufficientFreeAddressesInSubnet", Message: fmt.Sprintf("There are not enough free addresses in subnet '%s' to satisfy the requested number of instances.", subnet.ID)}
	}
	i := &instance{number: len(s.instances), Instance: Instance{
		ID: newID("i"), Reservation: reservation, Type: t.Name, Image: image.ID, Architecture: image.Architecture,
		Subnet: subnet.ID, VPC: subnet.VPC, Zone: subnet.Zone, PrivateIP: address.String(), PrivateDNSName: privateDNSName(address, s.domain()),
		NetworkInterface: newID("eni"), SecurityGroups: slices.Clone(l.SecurityGroups),
		Spot: l.Spot, MaxPrice: l.MaxPrice, CapacityReservation: capacity, CapacityPreference: cmp.Or(l.Preference, "open"),
		InstanceProfile: l.InstanceProfile, KeyName: l.KeyName, UserData: userData,
		ImageName: image.Name, VCPUs: t.VCPUs, MemoryMiB: t.MemoryMiB, RootGiB: cmp.Or(l.RootGiB, image.SnapshotGiB),
		Metadata: l.Metadata,
		Tags:     own(l.Tags), NetworkInterfaceTags: own(l.NetworkInterfaceTags), VolumeTags: own(l.VolumeTags),
		State: Pending, Launched: time.Now().UTC(),
	}}
	if l.Spot {
		i.SpotRequest = newID("sir")
	}
	s.instances[i.ID] = i
	s.start(i)
	return i.ID, nil
}

// auction returns the error for a spot instance whose price is too low.
func auction(t InstanceType, zone string, l Launch) error {
	if !l.Spot {
		return nil
	}
	price, sold := t.SpotPrice[zone]
	if !sold {
		failed := InsufficientInstanceCapacity(t.Name, zone)
		failed.Message = "There is no Spot capacity available that matches your request."
		return &failed
	}
	if limit, err := strconv.ParseFloat(l.MaxPrice, 64); l.MaxPrice != "" && err != nil {
		return &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf("Invalid value '%s' for MaxPrice.", l.MaxPrice)}
	} else if l.MaxPrice != "" && limit < price {
		return &Error{Code: "SpotMaxPriceTooLow", Message: fmt.Sprintf(
			"Your Spot request price of %s is lower than the minimum required Spot request fulfillment price of %v.", l.MaxPrice, price)}
	}
	return nil
}

// reserve returns the capacity reservation that an instance uses, "" if none.
func (s *Server) reserve(t InstanceType, zone string, l Launch) (string, error) {
	if id := l.CapacityReservation; id != "" {
		reservation, ok := s.capacity[id]
		switch {
		case !ok:
			return "", &Error{Code: "InvalidCapacityReservationId.NotFound", Message: fmt.Sprintf("The capacity reservation '%s' does not exist", id)}
		case l.Spot:
			return "", &Error{Code: "InvalidParameterCombination", Message: "A Spot instance can't use a capacity reservation."}
		case reservation.Type != t.Name || reservation.Zone != zone:
			return "", &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf(
				"The instance type or Availability Zone of the request doesn't match that of the capacity reservation '%s'.", id)}
		case s.used(id) >= reservation.Total:
			return "", &Error{Code: "ReservationCapacityExceeded", Message: "The requested reservation does not have sufficient compatible and available capacity for this request."}
		}
		return id, nil
	}
	if !l.Spot && l.Preference != "none" {
		for _, reservation := range byID(s.capacity) {
			if !reservation.Targeted && reservation.Type == t.Name && reservation.Zone == zone && s.used(reservation.ID) < reservation.Total {
				return reservation.ID, nil
			}
		}
	}
	if l.Preference == "capacity-reservations-only" {
		return "", &Error{Code: "ReservationCapacityExceeded", Message: "The requested reservation does not have sufficient compatible and available capacity for this request."}
	}
	return "", nil
}

// start runs an instance: pending, then running with its software.
func (s *Server) start(i *instance) {
	ctx, stop := context.WithCancelCause(s.ctx)
	i.stop = stop
	s.machines.Go(func() {
		if !wait(ctx, s.config.PendingDelay) {
			return
		}
		s.mu.Lock()
		starts := i.State == Pending
		if starts {
			i.State = Running
		}
		booted := i.clone()
		s.mu.Unlock()
		if starts && s.config.Boot != nil {
			s.config.Boot(ctx, booted)
		}
	})
}

// wait returns false when ctx ends first.
func wait(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// end terminates an instance. Its software ends at once.
func (s *Server) end(i *instance, code, message string) {
	if !i.live() {
		return
	}
	i.State, i.ReasonCode, i.ReasonMessage = ShuttingDown, code, message
	i.stop(errors.New(message))
	s.machines.Go(func() {
		if !wait(s.ctx, s.config.StopDelay) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		i.State = Terminated
	})
}

func (s *Server) terminateInstances(p Params) (any, error) {
	ids := p.List("InstanceId")
	if err := s.mustExist(ids); err != nil {
		return nil, err
	}
	type change struct {
		ID       string   `xml:"instanceId"`
		Current  stateXML `xml:"currentState"`
		Previous stateXML `xml:"previousState"`
	}
	answer := struct {
		Changes []change `xml:"instancesSet>item"`
	}{}
	for _, id := range ids {
		i := s.instances[id]
		previous := i.State
		s.end(i, "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
		answer.Changes = append(answer.Changes, change{id, newStateXML(i.State), newStateXML(previous)})
	}
	return answer, nil
}

// mustExist returns EC2's error for instances that don't exist.
func (s *Server) mustExist(ids []string) error {
	var missing []string
	for _, id := range ids {
		if _, ok := s.instances[id]; !ok {
			missing = append(missing, id)
		}
	}
	switch len(missing) {
	case 0:
		return nil
	case 1:
		return &Error{Code: "InvalidInstanceID.NotFound", Message: fmt.Sprintf("The instance ID '%s' does not exist", missing[0])}
	}
	return &Error{Code: "InvalidInstanceID.NotFound", Message: fmt.Sprintf("The instance IDs '%s' do not exist", strings.Join(missing, ", "))}
}

// Instances returns all instances, terminated ones too, in the order in which they were launched.
func (s *Server) Instances() []Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := byID(s.instances)
	slices.SortFunc(list, func(a, b *instance) int { return a.number - b.number })
	instances := make([]Instance, 0, len(list))
	for _, i := range list {
		instances = append(instances, i.clone())
	}
	return instances
}

// Terminate ends an instance as a person does in the console.
func (s *Server) Terminate(id string) error {
	return s.endOne(id, "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
}

// Reclaim ends a spot instance as EC2 does when it needs the capacity itself. The notice that EC2 gives two minutes before isn't part of
// its API.
func (s *Server) Reclaim(id string) error {
	s.mu.Lock()
	i, ok := s.instances[id]
	spot := ok && i.Spot
	s.mu.Unlock()
	if ok && !spot {
		return &Error{Code: "InvalidParameterValue", Message: id + " is no spot instance", Status: http.StatusBadRequest}
	}
	return s.endOne(id, "Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Instance terminated due to spot interruption")
}

func (s *Server) endOne(id, code, message string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mustExist([]string{id}); err != nil {
		return err
	}
	s.end(s.instances[id], code, message)
	return nil
}
