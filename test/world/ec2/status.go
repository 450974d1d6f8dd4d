// SPDX-License-Identifier: Apache-2.0

package ec2

// describeInstanceStatus reports the instances that run: the checks of all succeed, and EC2 has scheduled nothing for any.
func (s *Server) describeInstanceStatus(p Params) (any, error) {
	if err := s.mustExist(p.List("InstanceId")); err != nil {
		return nil, err
	}
	type status struct {
		ID       string   `xml:"instanceId"`
		Zone     string   `xml:"availabilityZone"`
		State    stateXML `xml:"instanceState"`
		Instance string   `xml:"instanceStatus>status"`
		System   string   `xml:"systemStatus>status"`
	}
	answer := struct {
		Statuses []status `xml:"instanceStatusSet>item"`
	}{}
	for _, i := range byID(s.instances) {
		if i.State != Running || !wanted(p, "InstanceId", i.ID) {
			continue
		}
		x := status{ID: i.ID, Zone: i.Zone, State: newStateXML(i.State), Instance: "ok", System: "ok"}
		passes, err := matches(p, fields{
			"instance-status.status": one(x.Instance), "system-status.status": one(x.System), "event.code": nil, "availability-zone": one(i.Zone),
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
