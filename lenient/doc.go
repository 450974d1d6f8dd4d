// SPDX-License-Identifier: Apache-2.0

// Package lenient lets typed lists and watches of custom resources go on when Go's types can't hold one of the objects.
//
// An API server admits what a schema admits: a time with a lowercase t, a quantity with the exponent 1.5, a duration that overflows. A
// typed list fails whole on such an object, and so does a watch; the informer of that kind then never syncs, for anyone. This package
// decodes such an answer object by object. What Go can't hold is left out of the object, and reported.
//
// An object is never left out itself. Whoever reads a list would take it for deleted: a Machine for a lost node.
//
// It is a transport and an informer. The informer notifies the transport, through the context of its requests, when an answer couldn't be
// decoded; until then the transport only looks for quantities that take too long to parse. Other answers are decoded twice: those to direct reads and to writes.
// Kinds that are built into Kubernetes are left alone: API servers decode them into the same Go types before they admit them.
package lenient
