// SPDX-License-Identifier: Apache-2.0

// Package hostile attacks the operator as those may who are served by it: one file an attacker. What each may reach, and what holds it, is in
// docs/internals/threat-model.md. The operator runs in the test's process, against real API servers that have no controller manager.
package hostile
