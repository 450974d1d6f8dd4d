// SPDX-License-Identifier: Apache-2.0

// Package dump collects what is needed to find out what is wrong with a hosted cluster, without what is secret: it never reads the
// content of Secrets, and removes from other objects and from logs what may be one.
package dump
