// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"fmt"
	"net/http"
	"slices"
)

// Fault is what an action fails with.
type Fault struct {
	// Action is the one that fails; "" for all that launch instances.
	Action string
	// InstanceType, Zone and Spot narrow a launch's fault: "" and nil stand for any.
	InstanceType, Zone string
	Spot               *bool
	// Error is what EC2 reports.
	Error Error
	// Times is how often it happens. Zero: until it is cleared.
	Times int

	happened int
}

// Inject adds a fault. The function that it returns clears it and reports how often it has happened.
func (s *Server) Inject(fault Fault) (end func() (happened int)) {
	f := &fault
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
	return func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = slices.DeleteFunc(s.faults, func(other *Fault) bool { return other == f })
		return f.happened
	}
}

// InsufficientInstanceCapacity is what a launch fails with when a zone has no capacity of a type.
func InsufficientInstanceCapacity(instanceType, zone string) Error {
	return Error{Code: "InsufficientInstanceCapacity", Status: http.StatusInternalServerError, Message: fmt.Sprintf(
		"We currently do not have sufficient %[1]s capacity in the Availability Zone you requested (%[2]s). Our system will be working on "+
			"provisioning additional capacity. You can currently get %[1]s capacity by not specifying an Availability Zone in your request "+
			"or choosing another one.", instanceType, zone)}
}

// RequestLimitExceeded is what a request fails with when there were too many.
func RequestLimitExceeded() Error {
	return Error{Code: "RequestLimitExceeded", Message: "Request limit exceeded.", Status: http.StatusServiceUnavailable}
}

// scope is what a launch requests; the zero scope is that of a request before it is read.
type scope struct {
	launch             bool
	instanceType, zone string
	spot               bool
}

// launching are the actions that launch instances.
var launching = []string{"RunInstances", "CreateFleet"}

// fail returns the error of the first fault that applies.
func (s *Server) fail(action string, at scope) error {
	for _, f := range s.faults {
		narrow := f.InstanceType != "" || f.Zone != "" || f.Spot != nil
		switch {
		case f.Action != "" && f.Action != action, f.Action == "" && !slices.Contains(launching, action), narrow != at.launch,
			f.InstanceType != "" && f.InstanceType != at.instanceType,
			f.Zone != "" && f.Zone != at.zone,
			f.Spot != nil && *f.Spot != at.spot,
			f.Times > 0 && f.happened >= f.Times:
			continue
		}
		f.happened++
		failed := f.Error
		return &failed
	}
	return nil
}

// SetVCPULimit sets the account's quota of vCPUs, of spot instances or of all others. A negative limit is none.
func (s *Server) SetVCPULimit(spot bool, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit < 0 {
		delete(s.quotas, spot)
		return
	}
	s.quotas[spot] = limit
}

// exceeds returns the error for a launch that is more than the account's quota.
func (s *Server) exceeds(t InstanceType, spot bool) error {
	limit, limited := s.quotas[spot]
	if !limited {
		return nil
	}
	used := t.VCPUs
	for _, i := range s.instances {
		if i.live() && i.Spot == spot {
			used += s.types[i.Type].VCPUs
		}
	}
	switch {
	case used <= limit:
		return nil
	case spot:
		return &Error{Code: "MaxSpotInstanceCountExceeded", Message: "Max spot instance count exceeded"}
	default:
		return &Error{Code: "VcpuLimitExceeded", Message: fmt.Sprintf(
			"You have requested more vCPU capacity than your current vCPU limit of %d allows for the instance bucket that the specified "+
				"instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.", limit)}
	}
}
