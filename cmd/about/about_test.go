// SPDX-License-Identifier: Apache-2.0

package about

import (
	goruntime "runtime"
	"runtime/debug"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDescribe(t *testing.T) {
	libraries := []*debug.Module{
		{Path: "sigs.k8s.io/cluster-api/api", Version: "v1.14.1"},
		{Path: "sigs.k8s.io/cluster-api", Version: "v1.14.2"},
		{Path: "sigs.k8s.io/karpenter", Version: "v1.14.1"},
	}
	for _, test := range []struct {
		name    string
		stamped string
		build   debug.BuildInfo
		want    Info
	}{
		{
			name:    "When the linker stamped a version, it should report that one",
			stamped: "v0.1.0", build: debug.BuildInfo{Main: debug.Module{Version: "v0.0.9"}, Deps: libraries},
			want: Info{Version: "v0.1.0", Karpenter: "v1.14.1", ClusterAPI: "v1.14.2"},
		}, {
			name:  "When the linker stamped none, it should report the one that the go command recorded",
			build: debug.BuildInfo{Main: debug.Module{Version: "v0.0.9"}},
			want:  Info{Version: "v0.0.9"},
		}, {
			name:  "When no version was recorded, it should report a development build",
			build: debug.BuildInfo{Main: debug.Module{Version: "(devel)"}},
			want:  Info{Version: "dev"},
		}, {
			name: "When there is no build information at all, it should report a development build",
			want: Info{Version: "dev"},
		}, {
			name:    "When the program links only the API of Cluster API, it should report that version",
			stamped: "v0.1.0", build: debug.BuildInfo{Deps: libraries[:1]},
			want: Info{Version: "v0.1.0", ClusterAPI: "v1.14.1"},
		}, {
			name:    "When a library is replaced, it should report what replaces it",
			stamped: "v0.1.0", build: debug.BuildInfo{Deps: []*debug.Module{
				{Path: "sigs.k8s.io/karpenter", Version: "v1.14.1", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.14.1-fix"}},
			}},
			want: Info{Version: "v0.1.0", Karpenter: "v1.14.1-fix"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.want.Program, test.want.Go, test.want.Platform = "autonode", goruntime.Version(), goruntime.GOOS+"/"+goruntime.GOARCH
			NewWithT(t).Expect(describe("autonode", test.stamped, &test.build)).To(Equal(test.want))
		})
	}
}

func TestString(t *testing.T) {
	info := Info{Program: "autonode", Version: "v0.1.0", Go: "go1.27.3", Platform: "linux/amd64"}
	t.Run("When a program links neither library, it should print neither", func(t *testing.T) {
		NewWithT(t).Expect(info.String()).To(Equal("autonode v0.1.0\nGo:  go1.27.3 linux/amd64\n"))
	})
	t.Run("When a program links both libraries, it should print both", func(t *testing.T) {
		info.Karpenter, info.ClusterAPI = "v1.14.1", "v1.14.2"
		NewWithT(t).Expect(info.String()).To(Equal(`autonode v0.1.0
Karpenter:    v1.14.1
Cluster API:  v1.14.2
Go:           go1.27.3 linux/amd64
`))
	})
}

func TestRequested(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want bool
	}{
		"When there is no argument, it should not answer":             {nil, false},
		"When the flag is there, it should answer":                    {[]string{"--namespace=blue", "--version"}, true},
		"When the flag has one dash, as Go allows, it should answer":  {[]string{"-version"}, true},
		"When another flag starts like it, it should not answer":      {[]string{"--version-policy=a"}, false},
		"When the flags have ended before it, it should not answer":   {[]string{"--", "--version"}, false},
		"When the version of nodes is set, it should not be confused": {[]string{"--node-version=1.36.3"}, false},
	} {
		t.Run(name, func(t *testing.T) { NewWithT(t).Expect(Requested(test.args)).To(Equal(test.want)) })
	}
}
