// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests that what manifests/monitoring looks at is there: that alerts and dashboards name metrics and labels that
// the programs serve, and that every alert has a runbook. It links both programs, which nothing else may.
package monitoring
