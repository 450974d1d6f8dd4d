// SPDX-License-Identifier: Apache-2.0

// Package released tests the life of a release: what `make release` builds is pushed to the registry of a world on which AutoNode has never
// been, installed from there with kubectl, `autonode install`, Helm and clusterctl, upgraded while nodes run, and uninstalled.
package released
