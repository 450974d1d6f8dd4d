// SPDX-License-Identifier: Apache-2.0

// Package release builds AutoNode's releases: images for each platform in OCI layouts, archives of the command-line tool,
// payloads, install.yaml, SBOMs, provenance, checksums and, with a key, signatures. The same source, version and Go
// version give the same bytes: no file has a time in it. Only autonode-dev links it.
package release
