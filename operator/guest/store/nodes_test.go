// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// likeReal is a Node as large as one of a real cluster: about 11 KiB of JSON.
func likeReal(name string) *corev1.Node {
	node := &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "0c6c28d0-1d3b-4d3b-8c1c-2d3b4d3b8c1c", ResourceVersion: "7", CreationTimestamp: metav1.Unix(1700000000, 0),
			Labels: map[string]string{"karpenter.sh/nodepool": "general"}, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
	}
	for i := range 15 {
		node.Labels[fmt.Sprint("example.com/label-", i)] = "value"
	}
	fields := `{"f:metadata":{"f:annotations":{".":{},"f:a":{}},"f:labels":{` + strings.Repeat(`"f:example.com/label":{},`, 30) + `"f:b":{}}}}`
	for range 4 {
		node.ManagedFields = append(node.ManagedFields, metav1.ManagedFieldsEntry{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)})
	}
	node.Spec.ProviderID, node.Spec.PodCIDRs = "kwok://"+name, []string{"10.0.0.0/24"}
	node.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", OSImage: "Linux", ContainerRuntimeVersion: "containerd://2.0"}
	node.Status.Capacity, node.Status.Allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "pods", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi"} {
		node.Status.Capacity[name], node.Status.Allocatable[name] = resource.MustParse("110"), resource.MustParse("16Gi")
	}
	for _, kind := range []corev1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: "False", Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"})
	}
	for i := range 50 {
		digest := fmt.Sprintf("registry.example/some/image-%d@sha256:%064d", i, i)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{digest, fmt.Sprint("registry.example/some/image:", i)}, SizeBytes: 12345678})
	}
	return node
}

// serveNodes is an API server that sends so many nodes: as a list, or as a watch that begins with one.
func serveNodes(tb testing.TB, count int, streams bool) *httptest.Server {
	tb.Helper()
	list := &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	events := &bytes.Buffer{}
	add := func(kind string, node *corev1.Node) {
		event := &metav1.WatchEvent{Type: kind}
		event.Object.Raw, _ = json.Marshal(node)
		raw, _ := json.Marshal(event)
		events.Write(append(raw, '\n'))
	}
	for i := range count {
		node := likeReal(fmt.Sprint("node-", i))
		list.Items = append(list.Items, *node)
		add("ADDED", node)
	}
	add("BOOKMARK", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
	})
	whole, err := json.Marshal(list)
	if err != nil {
		tb.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := r.URL.Query()
		switch {
		case query.Get("sendInitialEvents") != "" && !streams:
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`))
		case query.Get("sendInitialEvents") != "":
			_, _ = w.Write(events.Bytes())
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case query.Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			_, _ = w.Write(whole)
		}
	}))
	tb.Cleanup(server.Close)
	return server
}

func storeOf(tb testing.TB, server *httptest.Server, kinds func(schema.GroupVersionKind) Kind, change func(*Config)) *Store {
	tb.Helper()
	config := Config{
		Charge: func(int) {}, Guest: &rest.Config{Host: server.URL}, HTTP: server.Client(), Codecs: clientgoscheme.Codecs, Kinds: kinds, Timeout: time.Minute,
		Live: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithRESTMapper(mapper()).Build(),
	}
	if change != nil {
		change(&config)
	}
	s := New(config)
	tb.Cleanup(s.Close)
	return s
}

func mapper() meta.RESTMapper { return testrestmapper.TestOnlyStaticRESTMapper(clientgoscheme.Scheme) }
