// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/v1beta1"
)

const (
	// page is how many objects one request lists.
	page = 500
	// maxPages bounds the requests for a kind: a guest's API server may continue its lists without end.
	maxPages = 200
	// maxLog bounds the log of a container, in bytes.
	maxLog = 10 << 20
)

// autonodePods are the names in label app.kubernetes.io/name of pods that are AutoNode's.
var autonodePods = []string{"autonode-operator", "karpenter"}

// autonodeConfigMaps are those that AutoNode's programs read.
var autonodeConfigMaps = []string{"karpenter-prices", "karpenter-profiles", "karpenter-node-images", "karpenter-settings"}

// Collector reads one cluster into an archive. What can't be read is remembered, and the rest is read all the same.
type Collector struct {
	// Archive and Folder in it.
	Archive Archive
	Folder  string
	// LogLines is how many of the last lines of a log are collected.
	LogLines int64
	// Tenant is whether the cluster's users aren't the platform team. Nothing in it is then taken for AutoNode's.
	Tenant bool

	dynamic   dynamic.Interface
	clients   kubernetes.Interface
	resources []resource
	problems  []string
}

// resource can be listed.
type resource struct {
	schema.GroupVersionResource
	namespaced bool
}

// NewCollector connects to a cluster.
func NewCollector(config *rest.Config, archive Archive, folder string) (*Collector, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // there are a few requests a kind
	config.WarningHandlerWithContext = rest.NoWarnings{}
	c := &Collector{Archive: archive, Folder: folder}
	var err error
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	if c.clients, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	return c, nil
}

// Discover reads the cluster's version and kinds. Call it first; without it there is nothing to collect.
func (c *Collector) Discover() error {
	version, err := c.clients.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("reading the cluster's version: %w", err)
	}
	lists, err := c.clients.Discovery().ServerPreferredResources()
	if err != nil && len(lists) == 0 {
		return fmt.Errorf("reading the cluster's kinds: %w", err)
	}
	c.note("kinds", err)
	kinds := []string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") {
				c.resources = append(c.resources, resource{gv.WithResource(r.Name), r.Namespaced})
				kinds = append(kinds, gv.String()+" "+r.Name)
			}
		}
	}
	slices.Sort(kinds)
	return c.yaml("version.yaml", map[string]any{"kubernetes": version, "kinds": kinds})
}

// Objects collects all objects of kinds of these groups, in one namespace or, with "", those that are in none. A group that begins with a
// dot is a suffix.
func (c *Collector) Objects(ctx context.Context, namespace string, groups ...string) {
	for _, r := range c.resources {
		wanted := slices.ContainsFunc(groups, func(group string) bool {
			return r.Group == strings.TrimPrefix(group, ".") || strings.HasPrefix(group, ".") && strings.HasSuffix(r.Group, group)
		})
		if wanted && r.Group != "" && r.namespaced == (namespace != "") {
			c.list(ctx, r, namespace)
		}
	}
}

// Resources collects resources, such as daemonsets.apps, of one namespace or, with "", of all.
func (c *Collector) Resources(ctx context.Context, namespace string, resources ...string) {
	for _, wanted := range resources {
		if i := slices.IndexFunc(c.resources, func(r resource) bool { return r.GroupResource().String() == wanted }); i >= 0 {
			c.list(ctx, c.resources[i], namespace)
		}
	}
}

// list writes the objects of a resource into a file of their own.
func (c *Collector) list(ctx context.Context, r resource, namespace string) {
	if r.Group == "" && r.Resource == "secrets" {
		return // Secrets has them
	}
	where := fmt.Sprintf("%s in namespace %s", r.GroupResource(), cmp.Or(namespace, "(all)"))
	items := []any{}
	options := metav1.ListOptions{Limit: page}
	for n := 1; ; n++ {
		list, err := c.dynamic.Resource(r.GroupVersionResource).Namespace(namespace).List(ctx, options)
		if err != nil {
			c.note(where, err)
			break
		}
		for i := range list.Items {
			object := &list.Items[i]
			Object(object, !c.Tenant && isOwn(object))
			items = append(items, object.Object)
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
		if n == maxPages {
			c.note(where, fmt.Errorf("more than %d pages of %d objects; the rest is missing", maxPages, page))
			break
		}
	}
	if len(items) == 0 {
		return
	}
	file := path.Join(cmp.Or(namespace, "cluster"), r.GroupResource().String()+".yaml")
	c.note(where, c.yaml(file, map[string]any{"apiVersion": "v1", "kind": "List", "items": items}))
}

// isOwn reports whether an object is one of AutoNode's, whose arguments and settings are collected.
func isOwn(object *unstructured.Unstructured) bool {
	if object.GetKind() == "ConfigMap" {
		// In a namespace that clusters share, what the operator makes ends in the Cluster's name.
		shared, cluster := strings.CutSuffix(object.GetName(), "-"+object.GetLabels()[v1beta1.ClusterNameLabel])
		return slices.Contains(autonodeConfigMaps, object.GetName()) || cluster && slices.Contains(autonodeConfigMaps, shared)
	}
	if slices.Contains(autonodePods, object.GetLabels()["app.kubernetes.io/name"]) {
		return true
	}
	labels, _, _ := unstructured.NestedStringMap(object.Object, "spec", "template", "metadata", "labels")
	return slices.Contains(autonodePods, labels["app.kubernetes.io/name"])
}

// Secrets collects the names, types and numbers of keys of a namespace's Secrets. The API server doesn't send more.
func (c *Collector) Secrets(ctx context.Context, namespace string) {
	table := &metav1.Table{}
	raw, err := c.clients.CoreV1().RESTClient().Get().Namespace(namespace).Resource("secrets").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Param("includeObject", "None").Do(ctx).Raw()
	if err == nil {
		err = yaml.Unmarshal(raw, table)
	}
	if err != nil {
		c.note("secrets in namespace "+namespace, err)
		return
	}
	var text bytes.Buffer
	for _, column := range table.ColumnDefinitions {
		fmt.Fprintf(&text, "%s\t", strings.ToUpper(column.Name))
	}
	fmt.Fprintln(&text)
	for _, row := range table.Rows {
		for _, cell := range row.Cells {
			fmt.Fprintf(&text, "%v\t", cell)
		}
		fmt.Fprintln(&text)
	}
	c.note("secrets in namespace "+namespace, c.Add(path.Join(namespace, "secrets.txt"), text.Bytes()))
}

// Logs collects the last lines of the logs of AutoNode's pods in a namespace, those of the previous container too.
func (c *Collector) Logs(ctx context.Context, namespace string) {
	pods, err := c.clients.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name in (" + strings.Join(autonodePods, ",") + ")",
	})
	if err != nil {
		c.note("pods in namespace "+namespace, err)
		return
	}
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			c.log(ctx, &pod, status.Name, false)
			if status.RestartCount > 0 {
				c.log(ctx, &pod, status.Name, true)
			}
		}
	}
}

func (c *Collector) log(ctx context.Context, pod *corev1.Pod, container string, previous bool) {
	name := pod.Name + "-" + container
	if previous {
		name += "-previous"
	}
	limit := int64(maxLog)
	stream, err := c.clients.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, Previous: previous, TailLines: &c.LogLines, LimitBytes: &limit, Timestamps: true,
	}).Stream(ctx)
	var content []byte
	if err == nil {
		content, err = io.ReadAll(io.LimitReader(stream, maxLog))
		_ = stream.Close() // everything is read
	}
	if err != nil {
		c.note(fmt.Sprintf("log of pod %s/%s, container %s", pod.Namespace, pod.Name, container), err)
	}
	if len(content) > 0 {
		c.note("log "+name, c.Add(path.Join(pod.Namespace, "logs", name+".log"), []byte(Text(string(content)))))
	}
}

// Add a file to the cluster's folder.
func (c *Collector) Add(name string, content []byte) error {
	return c.Archive.Add(path.Join(c.Folder, name), content)
}

func (c *Collector) yaml(name string, value any) error {
	content, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	return c.Add(name, content)
}

// note remembers what couldn't be read.
func (c *Collector) note(what string, err error) {
	if err != nil {
		c.problems = append(c.problems, fmt.Sprintf("%s: %s: %s", c.Folder, what, Text(strings.Join(strings.Fields(err.Error()), " "))))
	}
}

// Problems are what couldn't be read, in order.
func (c *Collector) Problems() []string { return c.problems }
