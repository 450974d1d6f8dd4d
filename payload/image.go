// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/coreos/stream-metadata-go/arch"
	coreos "github.com/coreos/stream-metadata-go/stream"
	"sigs.k8s.io/yaml"
)

// NodeImages name the images that machines boot from: by architecture as Kubernetes calls it ("amd64"), then by infrastructure as CoreOS'
// stream metadata calls it ("aws", "gcp", "kubevirt", "metal"), then by variant: the region where images differ by that, the format
// ("qcow2.gz") where there is a disk to download, and nothing where there is one image alone.
type NodeImages map[string]map[string]map[string]string

// bootImages is the file in which OpenShift's payloads have a ConfigMap with CoreOS' stream metadata.
var bootImages = regexp.MustCompile(`^\d+_\d+_[^_]+_` + bootImagesName + `\.(yaml|yml|json)$`)

const (
	bootImagesName = "coreos-bootimages"
	// bootImagesFile is its name in images of Build, as in those of OpenShift's installer.
	bootImagesFile = "0000_50_installer_" + bootImagesName + ".yaml"
	// streamKey is the ConfigMap's key.
	streamKey = "stream"

	infrastructureAWS      = "aws"
	infrastructureAliyun   = "aliyun"
	infrastructureAzure    = "azure"
	infrastructureGCP      = "gcp"
	infrastructureIBMCloud = "ibmcloud"
	infrastructureKubeVirt = "kubevirt"
	infrastructurePowerVS  = "powervs"
)

// imageKey matches the name of an architecture, an infrastructure or a variant, which becomes part of a variable's name.
var imageKey = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// imageName is an identifier, a reference or an address.
var imageName = regexp.MustCompile(`^[!-~]+$`)

// readNodeImages finds the images that a payload names; none is fine.
func readNodeImages(files *overlay) (NodeImages, error) {
	var images NodeImages
	for _, file := range slices.Sorted(maps.Keys(files.files)) {
		if !bootImages.MatchString(file) {
			continue
		}
		if images != nil {
			return nil, malformed("%s/%s: there is another file with node images", directory, file)
		}
		var err error
		if images, err = parseNodeImages(files.files[file]); err != nil {
			return nil, refuse(err, "%s/%s: %v", directory, file, err)
		}
	}
	return images, nil
}

func parseNodeImages(content []byte) (NodeImages, error) {
	images, documents := NodeImages{}, 0
	err := eachDocument(content, func(document []byte) error {
		if documents++; documents > maxDocuments {
			return tooMany(maxDocuments, "YAML documents in one file")
		}
		root, err := decode(document)
		if err != nil {
			return err
		}
		metadata, _ := root["metadata"].(map[any]any)
		if root["kind"] != "ConfigMap" || metadata["name"] != bootImagesName {
			return nil
		}
		data, _ := root["data"].(map[any]any)
		stream, ok := data[streamKey].(string)
		if !ok {
			return nil
		}
		return images.addStream(stream)
	})
	return images, err
}

// addStream reads CoreOS' stream metadata.
func (n NodeImages) addStream(content string) error {
	if strings.Count(content, ":") > maxStreamFields {
		return tooMany(maxStreamFields, "fields in data."+streamKey)
	}
	var stream coreos.Stream
	if err := json.Unmarshal([]byte(content), &stream); err != nil {
		return fmt.Errorf("data.%s: %w", streamKey, err)
	}
	for name, machine := range stream.Architectures {
		images := architectureImages(machine)
		for infrastructure, variants := range images {
			if len(variants) == 0 {
				delete(images, infrastructure)
			}
		}
		if len(images) > 0 {
			n[arch.GoArch(name)] = images
		}
	}
	return n.check()
}

// architectureImages prefers an image that the infrastructure has already to one that would have to be uploaded.
func architectureImages(machine coreos.Arch) map[string]map[string]string {
	images := map[string]map[string]string{}
	set := func(infrastructure, variant, name string) {
		if name == "" {
			return
		}
		if images[infrastructure] == nil {
			images[infrastructure] = map[string]string{}
		}
		images[infrastructure][variant] = name
	}
	for infrastructure, replicated := range map[string]*coreos.ReplicatedImage{
		infrastructureAWS: machine.Images.Aws, infrastructureAliyun: machine.Images.Aliyun,
	} {
		if replicated != nil {
			for region, image := range replicated.Regions {
				set(infrastructure, region, image.Image)
			}
		}
	}
	for infrastructure, replicated := range map[string]*coreos.ReplicatedObject{
		infrastructureIBMCloud: machine.Images.Ibmcloud, infrastructurePowerVS: machine.Images.PowerVS,
	} {
		if replicated != nil {
			for region, object := range replicated.Regions {
				set(infrastructure, region, object.Url)
			}
		}
	}
	if gcp := machine.Images.Gcp; gcp != nil && gcp.Project != "" && gcp.Name != "" {
		set(infrastructureGCP, "", "projects/"+gcp.Project+"/global/images/"+gcp.Name)
	}
	if kubevirt := machine.Images.KubeVirt; kubevirt != nil {
		set(infrastructureKubeVirt, "", kubevirt.DigestRef)
	}
	if extensions := machine.RHELCoreOSExtensions; extensions != nil && extensions.AzureDisk != nil {
		set(infrastructureAzure, "", extensions.AzureDisk.URL)
	}
	for infrastructure, artifacts := range machine.Artifacts {
		if len(images[infrastructure]) > 0 {
			continue
		}
		for format, image := range artifacts.Formats {
			if image.Disk != nil {
				set(infrastructure, format, image.Disk.Location)
			}
		}
	}
	return images
}

// check limits names to the bounds of a ConfigMap and of a machine's fields.
func (n NodeImages) check() error {
	size := 0
	for architecture, infrastructures := range n {
		for infrastructure, variants := range infrastructures {
			for variant, name := range variants {
				for _, key := range []string{architecture, infrastructure, variant} {
					if key != "" && !imageKey.MatchString(key) {
						return fmt.Errorf("data.%s: %q is no name of an architecture, an infrastructure, a region or a format", streamKey, shorten(key))
					}
				}
				if len(name) > maxReferenceBytes {
					return fmt.Errorf("%w: data.%s: the image for %s on %s is longer than %d bytes", errTooLarge, streamKey, infrastructure,
						architecture, maxReferenceBytes)
				}
				if !imageName.MatchString(name) {
					return fmt.Errorf("data.%s: the image for %s on %s has a character that no name of an image has", streamKey,
						infrastructure, architecture)
				}
				if size += len(architecture) + len(infrastructure) + len(variant) + len(name); size > maxNodeImageBytes {
					return fmt.Errorf("%w: data.%s: the names of all images take more than %d bytes", errTooLarge, streamKey, maxNodeImageBytes)
				}
			}
		}
	}
	return nil
}

// render writes the file as OpenShift's payloads have it. An image that stream metadata can't express is an error.
func (n NodeImages) render() ([]byte, error) {
	stream := coreos.Stream{Architectures: map[string]coreos.Arch{}}
	for architecture, infrastructures := range n {
		machine := coreos.Arch{Artifacts: map[string]coreos.PlatformArtifacts{}}
		for infrastructure, variants := range infrastructures {
			replicated := &coreos.ReplicatedImage{Regions: map[string]coreos.SingleImage{}}
			formats := map[string]coreos.ImageFormat{}
			for variant, name := range variants {
				replicated.Regions[variant] = coreos.SingleImage{Image: name}
				formats[variant] = coreos.ImageFormat{Disk: &coreos.Artifact{Location: name}}
			}
			switch infrastructure {
			case infrastructureAWS:
				machine.Images.Aws = replicated
			case infrastructureAliyun:
				machine.Images.Aliyun = replicated
			case infrastructureKubeVirt:
				machine.Images.KubeVirt = &coreos.ContainerImage{DigestRef: variants[""]}
			case infrastructureGCP:
				project, name, _ := strings.Cut(strings.TrimPrefix(variants[""], "projects/"), "/global/images/")
				machine.Images.Gcp = &coreos.GcpImage{Project: project, Name: name}
			default:
				machine.Artifacts[infrastructure] = coreos.PlatformArtifacts{Formats: formats}
			}
		}
		stream.Architectures[arch.RpmArch(architecture)] = machine
	}
	content, err := json.Marshal(stream)
	if err != nil {
		return nil, err
	}
	file, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": bootImagesName, "namespace": "openshift-machine-config-operator"},
		"data":     map[string]any{streamKey: string(content)},
	})
	if err != nil {
		return nil, err
	}
	back, err := parseNodeImages(file)
	if err != nil {
		return nil, fmt.Errorf("node images: %w", err)
	}
	if !reflect.DeepEqual(n, back) {
		return nil, fmt.Errorf("node images: stream metadata can't express %v: aws and aliyun have one image for each region, gcp is "+
			"projects/…/global/images/…, kubevirt one image, and any other infrastructure a disk for each format", n)
	}
	return file, nil
}
