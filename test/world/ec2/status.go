// SPDX-License-Identifier: Apache-2.0

package ec2

import "time"

// Event is what EC2 has scheduled for an instance, such as instance-retirement.
type Event struct {
	Code, Description string
	NotBefore         time.Time
}

// Schedule announces an event of an instance.
func (s *Server) Schedule(instance string, event Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mustExist([]string{instance}); err != nil {
		return err
	}
	s.events[instance] = append(s.events[instance], event)
	return nil
}

// describeInstanceStatus tells of the instances that run: the checks of all succeed.
func (s *Server) describeInstanceStatus(p Params) (any, error) {
	if err := s.mustExist(p.List("InstanceId")); err != nil {
		return nil, err
	}
	type event struct {
		ID          string `xml:"instanceEventId"`
		Code        string `xml:"code"`
		Description string `xml:"description"`
		NotBefore   string `xml:"notBefore"`
	}
	type status struct {
		ID       string   `xml:"instanceId"`
		Zone     string   `xml:"availabilityZone"`
		State    stateXML `xml:"instanceState"`
		Instance string   `xml:"instanceStatus>status"`
		System   string   `xml:"systemStatus>status"`
		Events   []event  `xml:"eventsSet>item"`
	}
	answer := struct {
		Statuses []status `xml:"instanceStatusSet>item"`
	}{}
	for _, i := range byID(s.instances) {
		if i.State != Running || !wanted(p, "InstanceId", i.ID) {
			continue
		}
		x := status{ID: i.ID, Zone: i.Zone, State: newStateXML(i.State), Instance: "ok", System: "ok"}
		var codes []string
		for _, e := range s.events[i.ID] {
			codes = append(codes, e.Code)
			x.Events = append(x.Events, event{"instance-event-" + i.ID[len("i-"):], e.Code, e.Description, e.NotBefore.UTC().Format(timeFormat)})
		}
		passes, err := matches(p, fields{
			"instance-status.status": one(x.Instance), "system-status.status": one(x.System), "event.code": codes, "availability-zone": one(i.Zone),
		})
		if err != nil {
			return nil, err
		}
		if passes {
			answer.Statuses = append(answer.Statuses, x)
		}
	}
	return answer, nil
}
