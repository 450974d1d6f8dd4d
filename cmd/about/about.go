// SPDX-License-Identifier: Apache-2.0

// Package about reports what a program was built from. Every program prints it for --version.
package about

import (
	"fmt"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
)

// Info describes a program. Its JSON is an output format that scripts may rely on.
type Info struct {
	Program string `json:"program"`
	Version string `json:"version"`
	// Karpenter and ClusterAPI are the versions of the libraries that the program links, empty if it links none of them.
	Karpenter  string `json:"karpenter,omitempty"`
	ClusterAPI string `json:"clusterAPI,omitempty"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
}

// New describes the running program. stamped is the version that the linker wrote into it; empty means the version that the go command
// recorded, else "dev".
func New(program, stamped string) Info {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	return describe(program, stamped, build)
}

func describe(program, stamped string, build *debug.BuildInfo) Info {
	version := stamped
	if version == "" {
		version = build.Main.Version
	}
	if version == "" || version == "(devel)" {
		version = "dev"
	}
	return Info{
		Program: program, Version: version,
		Karpenter:  module(build, "sigs.k8s.io/karpenter"),
		ClusterAPI: module(build, "sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/api"),
		Go:         goruntime.Version(), Platform: goruntime.GOOS + "/" + goruntime.GOARCH,
	}
}

// module returns the version of the first of the modules that the program links.
func module(build *debug.BuildInfo, paths ...string) string {
	for _, path := range paths {
		for _, dependency := range build.Deps {
			if dependency.Path != path {
				continue
			}
			if dependency.Replace != nil {
				dependency = dependency.Replace
			}
			return dependency.Version
		}
	}
	return ""
}

// String returns the program and its version on the first line, and on each further line what it was built with.
func (i Info) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s\n", i.Program, i.Version)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, line := range []struct{ name, value string }{
		{"Karpenter", i.Karpenter}, {"Cluster API", i.ClusterAPI}, {"Go", i.Go + " " + i.Platform},
	} {
		if line.value != "" {
			fmt.Fprintf(table, "%s:\t%s\n", line.name, line.value)
		}
	}
	_ = table.Flush() // a strings.Builder takes everything
	return text.String()
}

// Requested reports whether the arguments of a program with Go's own flags request its version.
func Requested(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--version", "-version":
			return true
		case "--":
			return false
		}
	}
	return false
}
