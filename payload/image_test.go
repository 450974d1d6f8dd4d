// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
)

// openShift is stream metadata as OpenShift's payloads have it, shortened.
const openShift = `{"stream":"rhcos-4.21","metadata":{"last-modified":"2026-01-01T00:00:00Z"},"architectures":{
"aarch64":{"artifacts":{"aws":{"release":"9.6","formats":{"vmdk.gz":{"disk":{"location":"https://rhcos.example/aws.vmdk.gz","sha256":"00"}}}}},
  "images":{"aws":{"regions":{"eu-west-1":{"release":"9.6","image":"ami-0a"},"us-east-1":{"release":"9.6","image":"ami-0b"}}}}},
"x86_64":{"artifacts":{
    "metal":{"release":"9.6","formats":{"iso":{"disk":{"location":"https://rhcos.example/live.iso","sha256":"00"}},"pxe":{"kernel":{"location":"https://rhcos.example/kernel","sha256":"00"}}}},
    "openstack":{"release":"9.6","formats":{"qcow2.gz":{"disk":{"location":"https://rhcos.example/openstack.qcow2.gz","sha256":"00"}}}}},
  "images":{"aws":{"regions":{"us-east-1":{"release":"9.6","image":"ami-1b"}}},
    "gcp":{"release":"9.6","project":"rhcos-cloud","name":"rhcos-9-6-gcp-x86-64"},
    "kubevirt":{"release":"9.6","image":"quay.example/rhcos:9.6","digest-ref":"quay.example/rhcos@sha256:00"},
    "powervs":{"regions":{"dal":{"release":"9.6","object":"rhcos.ova.gz","bucket":"b","url":"https://s3.example/rhcos.ova.gz"}}}},
  "rhel-coreos-extensions":{"azure-disk":{"release":"9.6","url":"https://azure.example/rhcos.vhd"}}},
"s390x":{"artifacts":{}}}}`

func TestNodeImages(t *testing.T) {
	t.Run("When a payload has stream metadata, it should report the image of each architecture, infrastructure and region or format", func(t *testing.T) {
		g := NewWithT(t)
		images, err := parseNodeImages([]byte(bootImagesOf(openShift)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cmp.Diff(NodeImages{
			"arm64": {"aws": {"eu-west-1": "ami-0a", "us-east-1": "ami-0b"}},
			"amd64": {
				"aws":       {"us-east-1": "ami-1b"},
				"azure":     {"": "https://azure.example/rhcos.vhd"},
				"gcp":       {"": "projects/rhcos-cloud/global/images/rhcos-9-6-gcp-x86-64"},
				"kubevirt":  {"": "quay.example/rhcos@sha256:00"},
				"metal":     {"iso": "https://rhcos.example/live.iso"},
				"openstack": {"qcow2.gz": "https://rhcos.example/openstack.qcow2.gz"},
				"powervs":   {"dal": "https://s3.example/rhcos.ova.gz"},
			},
		}, images)).To(BeEmpty())
	})

	t.Run("When another ConfigMap has such a file's name, it should name no image", func(t *testing.T) {
		g := NewWithT(t)
		images, err := parseNodeImages([]byte("kind: ConfigMap\nmetadata: {name: other}\ndata: {stream: '{'}\n---\n# nothing\n"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(images).To(BeEmpty())
	})

	t.Run("When a release is built with node images, it should be read with the same, whichever components are asked for", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		spec := goodSpec()
		spec.NodeImages = NodeImages{
			"amd64": {"aws": {"us-east-1": "ami-1"}, "gcp": {"": "projects/p/global/images/n"}, "kubevirt": {"": "quay.example/rhcos@sha256:00"}, "kwok": {"raw": "file:///kwok"}},
			"arm64": {"aws": {"us-east-1": "ami-2"}},
		}
		ref, err := Push(t.Context(), s.host+"/release:1", build(t, spec), Options{})
		g.Expect(err).NotTo(HaveOccurred())
		release := readGood(t, ref, Options{Components: []string{component}})
		g.Expect(cmp.Diff(spec.NodeImages, release.NodeImages)).To(BeEmpty())
	})

	t.Run("When a release is built with an image that stream metadata can't express, it should say so", func(t *testing.T) {
		spec := goodSpec()
		spec.NodeImages = NodeImages{"amd64": {"gcp": {"us-east-1": "n"}}}
		_, err := Build(spec)
		expectError(t, err, ReasonPayloadMalformed, "stream metadata can't express")
	})
}
