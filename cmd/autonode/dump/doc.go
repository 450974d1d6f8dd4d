// SPDX-License-Identifier: Apache-2.0

// Package dump collects what is needed to find out what is wrong with a hosted cluster, without what is secret: it never reads the
// content of Secrets, keeps of other objects what kept.go lists, and removes from texts what looks like a secret.
package dump
