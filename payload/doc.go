// SPDX-License-Identifier: Apache-2.0

// Package payload reads and builds release images.
//
// A release image (the payload) pins everything that the platform runs for one version. It has OpenShift's layout, so that
// OpenShift's tools and its real payloads work too; nothing but these files is read:
//
//	release-manifests/image-references      JSON, an image.openshift.io/v1 ImageStream. Its name is the release's version; each
//	                                        of its tags is a component: spec.tags[].name, spec.tags[].from (a DockerImage by
//	                                        digest) and the annotation io.openshift.build.versions ("kubernetes=1.36.3").
//	release-manifests/release-metadata      JSON, kind cincinnati-metadata-v0: version, previous, metadata.
//	release-manifests/0000_50_<component>_* YAML or JSON; the CustomResourceDefinitions among them belong to that component.
//
// # Reading
//
// [Resolve] turns a tag into a digest with one small request; [ReadDigest] pulls a digest's content. It never changes, so a caller caches
// by Resolve's result and pulls each digest once:
//
//	ref, err := payload.Resolve(ctx, hostedCluster.Spec.Release.Image, opts) // no request at all if it is by digest already
//	release, err := payload.ReadDigest(ctx, ref, opts)
//	component, err := release.Component("karpenter-clusterapi")
//
// [Read] does both at once. The components in [Options.Components] are checked strictly; everything else in the image may be
// unknown, new or broken without harm.
//
// Layers are read from the top down, with the rules that a container runtime applies: a file in an upper layer hides the same
// file below it, and so do whiteouts, opaque directories, and links (which are never followed). Reading stops at the first layer that
// holds image-references, release-metadata and at least one more manifest, because a release's files are written as one layer
// by everything that builds release images; the layers below that one, an operating system of hundreds of megabytes in OpenShift's
// payloads, are never pulled. An image that spreads the files differently is read to its last layer, within the bounds.
//
// Everything is bounded: time, bytes pulled and unpacked, bytes kept, entries, layers, and how much of YAML and JSON is decoded, because an
// image may be anyone's. Content is used only after its digest was verified.
//
// # Errors
//
// Every error of this package that has to do with an image is (or wraps) an [*Error], whose Reason is fit for a condition
// and whose text is fit for its message.
//
// # Building
//
// [Build] makes an image from a [Spec], the same bytes for the same Spec; [Push] writes it to a registry.
package payload
