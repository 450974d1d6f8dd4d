// SPDX-License-Identifier: Apache-2.0

// Package targets tests that the Makefile runs every test that there is, and what each program links.
package targets
