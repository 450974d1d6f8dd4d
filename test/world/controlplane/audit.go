// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// Audit configures an API server's audit log. The log has no bodies, so no secrets.
type Audit struct {
	// Users are those whose requests are logged.
	Users []string
	// Everybody has all requests written down that cost an API server something, but for those of the users Except: no watches, no
	// renewals of leases, which depend on time alone, and nothing that is no object.
	Everybody bool
	Except    []string
	// File is the log, one JSON object a line.
	File string
}

// auditPolicy notes the metadata of each request when it is answered; of a watch also when it begins, because one that still runs is never answered.
func auditPolicy(audit Audit) ([]byte, error) {
	rules := []map[string]any{{"level": "None"}}
	switch {
	case audit.Everybody:
		rules = []map[string]any{
			{"level": "None", "nonResourceURLs": []string{"*"}},
			{"level": "None", "verbs": []string{"watch"}},
			{"level": "None", "verbs": []string{"get", "update", "patch"}, "resources": []map[string]any{
				{"group": "coordination.k8s.io", "resources": []string{"leases"}},
			}},
			{"level": "Metadata"},
		}
		if len(audit.Except) > 0 {
			rules = append([]map[string]any{{"level": "None", "users": audit.Except}}, rules...)
		}
	case len(audit.Users) > 0: // without users a rule is about everybody
		rules = append([]map[string]any{{"level": "Metadata", "users": audit.Users}}, rules...)
	}
	policy, err := yaml.Marshal(map[string]any{
		"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": []string{"RequestReceived"}, "rules": rules,
	})
	if err != nil {
		return nil, fmt.Errorf("writing an audit policy: %w", err)
	}
	return policy, nil
}

// auditArgs are the flags that an API server is audited by.
func (c *Cluster) auditArgs() []string {
	if c.audit.File == "" {
		return nil
	}
	return []string{
		"--audit-policy-file=" + c.file(auditPolicyFile),
		"--audit-log-path=" + c.audit.File,
		"--audit-log-maxsize=4096", // megabytes: a log in one file
	}
}

const auditPolicyFile = "audit-policy.yaml"
