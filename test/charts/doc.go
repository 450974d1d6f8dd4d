// SPDX-License-Identifier: Apache-2.0

// Package charts makes the templates of the Helm charts in charts/ from what kustomize builds of manifests/, so that both install the same
// objects.
package charts
