// SPDX-License-Identifier: Apache-2.0

// Package controllers holds the controllers, one package each. A controller watches objects in one of the two clusters and
// writes to either. It calls providers; only run.go imports it.
package controllers
