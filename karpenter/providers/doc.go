// SPDX-License-Identifier: Apache-2.0

// Package providers holds, one package each, what CloudProvider.Create and CloudProvider.GetInstanceTypes read:
// instance types, offerings, prices, versions, Machines. A provider answers from caches, reconciles nothing, and
// imports neither controllers nor cloudprovider.
package providers
