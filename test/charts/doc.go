// SPDX-License-Identifier: Apache-2.0

// Package charts makes the templates and the READMEs of the Helm charts in charts/: the templates from what kustomize builds of manifests/, so
// that both install the same objects, and a README from the comments of values.yaml.
package charts
