// SPDX-License-Identifier: Apache-2.0

// Package controllers holds, one package each, what reconciles: it watches objects in one of the two clusters and writes
// what follows. A controller calls providers; only run.go imports a controller.
package controllers
