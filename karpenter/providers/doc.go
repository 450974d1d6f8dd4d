// SPDX-License-Identifier: Apache-2.0

// Package providers holds, one package each, the inputs of CloudProvider.Create and CloudProvider.GetInstanceTypes:
// instance types, offerings, prices, versions, Machines. A provider answers from caches, reconciles nothing, and
// imports neither controllers nor cloudprovider.
package providers
