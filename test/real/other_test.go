// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package real

import "testing"

func TestRealMachine(t *testing.T) {
	t.Fatal("When machines are real, it should run on Linux: they are its namespaces and cgroups")
}
