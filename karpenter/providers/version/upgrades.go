// SPDX-License-Identifier: Apache-2.0

package version

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// notice is how late Karpenter core may notice that a node has drifted, or doesn't count as drifted any more: it looks every five
// minutes. Upgrades end so much before the window does, so that none begins behind its end.
const notice = 5 * time.Minute

// Never is the value of --node-upgrade-window that lets no node be replaced because of the payload's version.
const Never = "never"

// Upgrades says when nodes may be replaced because the payload gives another version. Nil: at any time.
type Upgrades func(now time.Time) bool

// ParseUpgrades reads a maintenance window in JSON, as spec.autoNode.nodeUpgrade.maintenanceWindow of a HostedCluster has it, or Never,
// or nothing.
func ParseUpgrades(value string) (Upgrades, error) {
	switch value {
	case "":
		return nil, nil
	case Never:
		return func(time.Time) bool { return false }, nil
	}
	spec := v1beta1.MaintenanceWindow{}
	decoder := json.NewDecoder(strings.NewReader(value))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&spec); err != nil {
		return nil, fmt.Errorf("%q is neither %q nor a maintenance window in JSON: %w", value, Never, err)
	}
	window, err := spec.Parse()
	if err != nil {
		return nil, fmt.Errorf("reading the maintenance window: %w", err)
	}
	return func(now time.Time) bool { return window.Open(now) && window.Open(now.Add(notice)) }, nil
}
