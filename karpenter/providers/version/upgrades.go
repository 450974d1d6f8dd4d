// SPDX-License-Identifier: Apache-2.0

package version

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/maintenance"
)

// notice is how long Karpenter core may take to notice drift or its end: it checks every five minutes. No replacement
// starts in the last five minutes of the window.
const notice = 5 * time.Minute

// Never is the value of --node-upgrade-window that disables node replacement for the payload's version.
const Never = "never"

// Upgrades reports whether nodes may be replaced for the payload's version; nil for at any time.
type Upgrades func(now time.Time) bool

// ParseUpgrades parses a maintenance window in JSON, in the format of spec.autoNode.nodeUpgrade.maintenanceWindow of
// a HostedCluster, Never, or the empty string.
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
	window, err := maintenance.Parse(spec)
	if err != nil {
		return nil, fmt.Errorf("reading the maintenance window: %w", err)
	}
	return func(now time.Time) bool { return window.Open(now) && window.Open(now.Add(notice)) }, nil
}
