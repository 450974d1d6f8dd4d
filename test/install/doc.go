// SPDX-License-Identifier: Apache-2.0

// Package install tests what an installation consists of: that kustomize builds manifests/, that what runs keeps to the restricted Pod Security
// Standard and to its NetworkPolicy, that images hold nothing but a program, and that docs/reference/permissions.md states what each identity may do.
package install
