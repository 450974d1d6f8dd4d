// SPDX-License-Identifier: Apache-2.0

// Package docs tests that what the documentation shows is right: API objects against a real API server, files against the code
// that reads them, and commands against the programs themselves.
package docs
