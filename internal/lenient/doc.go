// SPDX-License-Identifier: Apache-2.0

// Package lenient decodes JSON of which Go's types can't hold every value.
//
// An API server admits any value that its schema admits: a time with a lowercase t, a quantity with the exponent 1.5, a duration that
// overflows. A typed list fails whole on such an object, and so does a watch; the informer of that kind then never syncs, for anyone.
// Decode leaves such a value out of its object, and names it. It never leaves out the object: a reader of a list would take a missing
// Machine for a lost node.
//
// Decoder does that for Cluster API's objects in the management cluster, as a transport. API servers decode built-in kinds into the same Go
// types before they admit them, and fields of this project's kinds have the types of api/scalar.
package lenient
