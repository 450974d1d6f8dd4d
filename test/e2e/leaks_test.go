// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/test/leak"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
)

// holders are the kinds that hold credentials: Secrets, and the configuration of a node that joins, into which Cluster API writes a token of ten minutes.
var holders = []schema.GroupResource{{Resource: "secrets"}, {Group: "bootstrap.cluster.x-k8s.io", Resource: "kubeadmconfigs"}}

// checkLeaks looks for the credentials of all clusters in the logs of AutoNode's programs, and in every object but those that are there to hold
// them: events, status, arguments and environment of Deployments are among them. It looks for what Secrets ever held since the
// world's start.
func checkLeaks(ctx context.Context, world *localworld.World) ([]string, error) {
	known, ok := secrets.Load(world)
	if !ok {
		return nil, errors.New("no watch of this world's Secrets")
	}
	finder := known.(*leak.Finder)
	clusters := clustersOf(world)
	if finder.Known() == 0 {
		return nil, errors.New("no Secret was seen when it was made")
	}
	for _, cluster := range clusters {
		if err := learn(ctx, finder, cluster); err != nil {
			return nil, err
		}
	}
	_, password := world.Registry().Credentials()
	finder.Mark("the registry's password", password)

	var findings []string
	logs, err := programLogs(world)
	if err != nil {
		return nil, err
	}
	for path, content := range logs {
		for _, found := range finder.Find(string(content)) {
			findings = append(findings, fmt.Sprintf("%s: contains %s", path, found))
		}
	}
	if len(logs) == 0 {
		findings = append(findings, world.PodLogDir()+": there is no log")
	}
	for _, cluster := range clusters {
		found, err := credentialsIn(ctx, finder, cluster.RESTConfig(), holders...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cluster.Name, err)
		}
		for _, finding := range found {
			findings = append(findings, cluster.Name+": "+finding)
		}
	}
	return findings, nil
}

// programLogs reads what AutoNode's programs have logged: the management cluster's pods, and the operators that a test ran beside them.
func programLogs(world *localworld.World) (map[string][]byte, error) {
	paths := world.OperatorLogs()
	if err := filepath.WalkDir(world.PodLogDir(), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			paths = append(paths, path)
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("looking for the logs of AutoNode: %w", err)
	}
	logs := map[string][]byte{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the log of a run long ago was removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("reading the logs of AutoNode: %w", err)
		}
		logs[path] = content
	}
	return logs, nil
}

// clustersOf are all clusters whose credentials a world has.
func clustersOf(world *localworld.World) []*controlplane.Cluster {
	return slices.Concat(world.Guests(), world.Adopted(), []*controlplane.Cluster{world.Management()})
}

// learn shows a Finder every Secret of a cluster.
func learn(ctx context.Context, finder *leak.Finder, cluster *controlplane.Cluster, but ...func(*corev1.Secret) bool) error {
	reader, err := newClient(cluster.RESTConfig())
	if err != nil {
		return err
	}
	secrets := &corev1.SecretList{}
	if err := reader.List(ctx, secrets); err != nil {
		return fmt.Errorf("reading the Secrets of %s: %w", cluster.Name, err)
	}
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		if !slices.ContainsFunc(but, func(excluded func(*corev1.Secret) bool) bool { return excluded(secret) }) {
			finder.Learn(cluster.Name, secret)
		}
	}
	return nil
}

// bootsMachine reports whether a Secret of the management cluster holds what a machine boots with: its bootstrap token is a credential of the
// guest, and at home there.
func bootsMachine(secret *corev1.Secret) bool {
	return kindOf("Secret", secret) == bootstrapData
}

// managementCredentialsIn looks in every object of a guest, Secrets too, for what could lead to the management cluster: any of its credentials, its CA, its address.
func managementCredentialsIn(ctx context.Context, world *localworld.World, guest *controlplane.Cluster) ([]string, error) {
	finder := &leak.Finder{}
	if err := learn(ctx, finder, world.Management(), bootsMachine); err != nil {
		return nil, err
	}
	server, err := url.Parse(world.Management().URL)
	if err != nil {
		return nil, err
	}
	finder.Mark("the management cluster's address", server.Host)
	finder.Mark("the management cluster's CA", strings.Split(string(world.Management().CA.Certificate), "\n")[2])
	return credentialsIn(ctx, finder, guest.RESTConfig())
}

// credentialsIn returns which objects of a cluster contain a credential, but for those of some kinds.
func credentialsIn(ctx context.Context, finder *leak.Finder, config *rest.Config, but ...schema.GroupResource) ([]string, error) {
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := discoverer.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("asking for all kinds: %w", err)
	}
	var findings []string
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, kind := range list.APIResources {
			resource := version.WithResource(kind.Name)
			if !slices.Contains(kind.Verbs, "list") || slices.Contains(but, resource.GroupResource()) {
				continue
			}
			found, err := objects.Resource(resource).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("listing %s: %w", resource.GroupResource(), err)
			}
			for i := range found.Items {
				text, err := readable(&found.Items[i])
				if err != nil {
					return nil, err
				}
				for _, credential := range finder.Find(text) {
					findings = append(findings, fmt.Sprintf("%s %s/%s contains %s", kind.Kind, found.Items[i].GetNamespace(), found.Items[i].GetName(), credential))
				}
			}
		}
	}
	return findings, nil
}

// readable is an object as JSON, followed by the data of a Secret as it is before it is encoded.
func readable(object *unstructured.Unstructured) (string, error) {
	content, err := json.Marshal(object)
	if err != nil {
		return "", err
	}
	text := string(content)
	if object.GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Secret") {
		secret := &corev1.Secret{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, secret); err != nil {
			return "", err
		}
		for _, value := range secret.Data {
			text += "\n" + string(value)
		}
	}
	return text, nil
}
