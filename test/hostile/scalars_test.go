// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
)

const (
	scalarsLabel, scalarsNamespace = "hostile-scalars", "scalars"
	// timeout bounds a request or a list. One that parses an exponent takes half an hour.
	timeout = apiserver.Timeout
)

// What an integer, a quantity, a time or a duration may be, in JSON. Much of it is malformed, and the API server admits what its schema doesn't
// exclude. Every field gets the revealing ones: what no other type than ours decodes, or takes half an hour. Fields of a type are decoded alike, so
// that the others are shared out among them.
var (
	tellingNumbers = []string{"1.5", "2147483648", "9223372036854775808", "1e300"}
	otherNumbers   = []string{
		"-1", "0", "-0.0", "1e3", "1e-9", "-2147483649", "1099511627776", "9007199254740993", "9223372036854775807", "-9223372036854775808", "1e20",
	}
	tellingTexts = quoted("", "1e-999999999", "1e999999999", "2026-12-01t06:00:00z", "9223372036854775807h", "1 ")
	otherTexts   = quoted(
		"-1E+999999999", ".1e-99999999", strings.Repeat("9", 32), strings.Repeat("9", 4096), "0x1p-2", "1e99", "1e-99", "5%",
		"2026-12-01T06:00:00+99:99", "2026-12-01T06:00:00,5Z", "2026-12-01T06:00:00x5Z", "2026-12-01T06:00:00ZT1e9", "2026-12-01T06:00:60Z",
		"0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2026-12-01T06:00:00."+strings.Repeat("9", 64)+"Z",
		"1h", "2562047h47m16.854775807s", "0.0000000000000000000001h", "-1h", "1d",
	)
	// plainTexts are for fields that are any text: more are no different.
	plainTexts = quoted("1e-999999999", "2026-12-01t06:00:00z")
)

func quoted(texts ...string) []string {
	for i, text := range texts {
		texts[i] = strconv.Quote(text)
	}
	return texts
}

// kindOfOurs is one of our CRDs.
type kindOfOurs struct {
	name, example string
	list          client.ObjectList
	guest         bool
}

var kindsOfOurs = []kindOfOurs{
	{"hostedclusters.autonode.io", "hostedcluster/full", &v1beta1.HostedClusterList{}, false},
	{"controlplanecomponents.autonode.io", "", &v1beta1.ControlPlaneComponentList{}, false},
	{"capacityaccounts.autonode.io", "capacityaccount/everything", &autonodev1alpha1.CapacityAccountList{}, false},
	{"capacityleases.autonode.io", "capacitylease/everything", &autonodev1alpha1.CapacityLeaseList{}, false},
	{"instancetypecatalogs.karpenter.cluster.x-k8s.io", "instancetypecatalog/everything", &v1alpha1.InstanceTypeCatalogList{}, false},
	{"clusterapinodeclasses.karpenter.cluster.x-k8s.io", "clusterapinodeclass/everything", &v1alpha1.ClusterAPINodeClassList{}, true},
	{"noderecords.karpenter.cluster.x-k8s.io", "", &v1alpha1.NodeRecordList{}, true},
}

// TestScalars writes into each number, quantity, time and duration of each CRD of ours whatever its schema admits; and then, as if it had been
// stored before the schema excluded it, what that refuses. An operator that starts with all of it serves another tenant.
func TestScalars(t *testing.T) {
	g := NewWithT(t)
	namespace(t, scalarsNamespace)
	err := apiserver.InstallCRDs(clusters.Guest.Config, envtest.CRDInstallOptions{Paths: []string{filepath.Join("..", "..", "assets", "crds")}, ErrorIfPathMissing: true})
	g.Expect(err).NotTo(HaveOccurred())
	for i := range kindsOfOurs {
		f := newFeeder(t, &kindsOfOurs[i])
		t.Run("When "+f.name+" have extremes that their schema admits, it should list them", func(t *testing.T) {
			f.feed(t)
			f.decodes(t)
		})
		t.Run("When "+f.name+" have what an older schema admitted, it should list them", func(t *testing.T) {
			f.feedRefused(t)
			f.decodes(t)
		})
	}

	t.Run("When an operator starts with all of them, it should serve another tenant", func(t *testing.T) {
		g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
		serve(t, scalarsLabel)
		image := servePayload(t)
		controlPlane(t, client.ObjectKey{Namespace: "scalars-honest", Name: "honest"}, scalarsNamespace+"/honest", guestKubeconfig(t))
		honest := hosted(t, scalarsNamespace, "honest", scalarsLabel, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = image })
		g.Eventually(condition(t, honest, v1beta1.GuestReachable)).Should(HavePrefix("True/"))

		inBytes := &v1alpha1.InstanceTypeCatalog{ObjectMeta: metav1.ObjectMeta{Namespace: "scalars-honest", Name: "bytes"}}
		g.Expect(yaml.Unmarshal(exampleOf(t, "instancetypecatalog/everything"), inBytes)).To(Succeed())
		inBytes.Namespace = "scalars-honest"
		g.Expect(management.Create(ctx, inBytes)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(inBytes), inBytes)).To(Succeed())
			g.Expect(inBytes.Status.InstanceTypeCount).To(HaveValue(BeEquivalentTo(1)))
		}).Should(Succeed())
		// A malformed time is the account's own problem.
		g.Eventually(func(g Gomega) {
			list := &autonodev1alpha1.CapacityAccountList{}
			g.Expect(management.List(ctx, list)).To(Succeed())
			g.Expect(list.Items).To(ContainElement(HaveField("Status.Unusable", ContainElement(And(
				HaveField("Field", "reservations[cr-1].expires"), HaveField("Message", ContainSubstring("is not a time in RFC 3339")))))))
		}).Should(Succeed())
	})
}

// feeder writes objects of one kind.
type feeder struct {
	kindOfOurs
	cluster *scopetest.Cluster
	crd     *apiextensionsv1.CustomResourceDefinition
	rest    rest.Interface
	path    string
	// parts are the fields of spec and status, examples in which every field of interest is set. A NodeRecord's are its launch and its end.
	parts        [2]string
	spec, status any
	labels       map[string]string
	// count of the objects that were made; the last one's name ends with it.
	count int
	// refused are the values that the schema doesn't admit, by place.
	refused map[string][]string
}

func newFeeder(t *testing.T, kind *kindOfOurs) *feeder {
	t.Helper()
	g := NewWithT(t)
	f := &feeder{kindOfOurs: *kind, cluster: &clusters.Management, crd: &apiextensionsv1.CustomResourceDefinition{}, refused: map[string][]string{}, labels: map[string]string{scalarsNamespace: ""}}
	if kind.guest {
		f.cluster = &clusters.Guest
	}
	g.Expect(f.cluster.Client.Get(t.Context(), client.ObjectKey{Name: f.name}, f.crd)).To(Succeed())
	version := f.crd.Spec.Versions[0]
	f.path = "/apis/" + f.crd.Spec.Group + "/" + version.Name + "/"
	if f.crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		f.path += "namespaces/" + scalarsNamespace + "/"
	}
	f.path += f.crd.Spec.Names.Plural
	config := rest.CopyConfig(f.cluster.Config)
	config.QPS, config.NegotiatedSerializer = -1, clientgoscheme.Codecs.WithoutConversion()
	var err error
	f.rest, err = rest.UnversionedRESTClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	f.parts, f.spec = [2]string{"spec", "status"}, map[string]any{}
	if launch, ok := version.Schema.OpenAPIV3Schema.Properties["launch"]; ok {
		f.parts, f.spec = [2]string{"launch", "end"}, example(launch)
	}
	f.status = example(version.Schema.OpenAPIV3Schema.Properties[f.parts[1]])
	if f.example != "" {
		object := map[string]any{}
		g.Expect(yaml.Unmarshal(exampleOf(t, f.example), &object)).To(Succeed())
		f.spec = object["spec"]
	}
	t.Cleanup(func() { f.remove(t) })
	return f
}

// exampleOf is the content of an example in the tests of the API.
func exampleOf(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "api", "testdata", name+".yaml"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return content
}

// remove deletes what the feeder has written.
func (f *feeder) remove(t *testing.T) {
	t.Helper()
	ctx, management := context.Background(), f.cluster.Client
	NewWithT(t).Eventually(func(g Gomega) {
		g.Expect(f.rest.Delete().AbsPath(f.path).Param("labelSelector", scalarsNamespace).Do(ctx).Error()).To(Succeed())
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: f.crd.Spec.Group, Version: f.crd.Spec.Versions[0].Name, Kind: f.crd.Spec.Names.ListKind})
		g.Expect(management.List(ctx, list, client.HasLabels{scalarsNamespace})).To(Succeed())
		for i := range list.Items { // the test's operator has set finalizers
			found := &list.Items[i]
			g.Expect(client.IgnoreNotFound(management.Patch(ctx, found, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).To(Succeed())
		}
		g.Expect(list.Items).To(BeEmpty())
	}).Should(Succeed())
}

// example of a schema, with one item in each list and map.
func example(s apiextensionsv1.JSONSchemaProps) any {
	switch {
	case len(s.Enum) > 0:
		return json.RawMessage(s.Enum[0].Raw)
	case s.XIntOrString, s.Type == "integer":
		return json.RawMessage("1")
	case s.Type == "boolean":
		return true
	case s.Type == "array":
		return []any{example(*s.Items.Schema)}
	case s.Type == "object":
		object := map[string]any{}
		for name := range s.Properties {
			object[name] = example(s.Properties[name])
		}
		if s.AdditionalProperties != nil {
			object["example.com/a"] = example(*s.AdditionalProperties.Schema)
		}
		return object
	case s.Format == "date-time":
		return "2026-12-01T06:00:00Z"
	}
	return "a"
}

// leaf is a number or a text somewhere in an object.
type leaf struct {
	schema *apiextensionsv1.JSONSchemaProps
	place  string
	// rules of it and of what encloses it.
	rules string
	set   func(any)
}

// visit calls see for each leaf of a value, the first of a list or map's.
func visit(l leaf, value any, see func(leaf)) {
	for _, rule := range l.schema.XValidations {
		l.rules += rule.Rule
	}
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			of, inner := l.schema.Properties[key], v[key]
			at := leaf{&of, l.place + "." + key, l.rules, func(to any) { v[key] = to }}
			if l.schema.AdditionalProperties != nil {
				at.schema, at.place = l.schema.AdditionalProperties.Schema, l.place+"{}"
			}
			visit(at, inner, see)
			v[key] = inner
		}
	case []any:
		for i, inner := range v {
			visit(leaf{l.schema.Items.Schema, l.place + "[]", l.rules, func(to any) { v[i] = to }}, inner, see)
			v[i] = inner
		}
	default:
		see(l)
	}
}

// parsed reports whether something other than text is made of it.
func (l leaf) parsed() bool {
	return l.schema.XIntOrString || l.schema.Type == "integer" || l.schema.Format == "date-time" ||
		l.schema.Type == "string" && len(l.schema.Enum) == 0 && (strings.Contains(l.rules, "duration(") || strings.Contains(l.rules, "isQuantity("))
}

func (l leaf) extremes() []string {
	switch {
	case l.schema.XIntOrString:
		return slices.Concat(tellingNumbers, share(otherNumbers), tellingTexts, share(otherTexts))
	case l.schema.Type == "integer":
		return slices.Concat(tellingNumbers, share(otherNumbers))
	case l.parsed():
		return slices.Concat(tellingTexts, share(otherTexts))
	case l.schema.Type == "string" && len(l.schema.Enum) == 0:
		return plainTexts
	}
	return nil
}

// shared is how many values were shared out so far.
var shared int

// share is a field's part of the values that fields of all kinds share: the next six of them.
func share(values []string) []string {
	const most = 6
	if len(values) <= most {
		return values
	}
	shared += most
	return slices.Concat(values, values)[(shared-most)%len(values):][:most]
}

// places of a schema that are parsed.
func places(l leaf) []string {
	var found []string
	for _, rule := range l.schema.XValidations {
		l.rules += rule.Rule
	}
	for name, of := range l.schema.Properties {
		found = append(found, places(leaf{schema: &of, place: l.place + "." + name, rules: l.rules})...)
	}
	if l.schema.AdditionalProperties != nil {
		found = append(found, places(leaf{schema: l.schema.AdditionalProperties.Schema, place: l.place + "{}", rules: l.rules})...)
	}
	if l.schema.Items != nil {
		found = append(found, places(leaf{schema: l.schema.Items.Schema, place: l.place + "[]", rules: l.rules})...)
	}
	if l.parsed() {
		found = append(found, l.place)
	}
	return found
}

// feed writes every extreme of every field.
func (f *feeder) feed(t *testing.T) {
	t.Helper()
	covered := f.each(t, leaf.extremes, func(l leaf, value string, write func() error) {
		if write() != nil {
			f.refused[l.place] = append(f.refused[l.place], value)
		}
	})
	for _, part := range f.parts {
		of := f.crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[part]
		for _, place := range places(leaf{schema: &of, place: part}) {
			if !covered[place] {
				t.Errorf("api/testdata/%s.yaml has no %s", f.kindOfOurs.example, place)
			}
		}
	}
}

// feedRefused writes the texts that the schema refuses, in the absence of what it reports about texts.
func (f *feeder) feedRefused(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	f.labels[scalarsLabel] = "" // the operator keeps no other HostedCluster in memory
	relaxed := f.crd.DeepCopy()
	relax(relaxed.Spec.Versions[0].Schema.OpenAPIV3Schema)
	relaxed.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[inForce] = apiextensionsv1.JSONSchemaProps{Type: "boolean"}
	g.Expect(f.cluster.Client.Patch(ctx, relaxed.DeepCopy(), client.MergeFrom(f.crd))).To(Succeed())
	g.Eventually(f.relaxed).WithContext(ctx).Should(BeTrue())
	defer func() {
		g.Expect(f.cluster.Client.Patch(ctx, f.crd.DeepCopy(), client.MergeFrom(relaxed))).To(Succeed())
		g.Eventually(f.relaxed).WithContext(ctx).Should(BeFalse())
	}()
	f.each(t, func(l leaf) []string {
		if !l.parsed() || l.schema.Type == "integer" {
			return nil
		}
		texts := slices.DeleteFunc(slices.Clone(f.refused[l.place]), func(value string) bool { return !strings.HasPrefix(value, `"`) })
		return share(texts)
	}, func(l leaf, value string, write func() error) {
		g.Expect(write()).To(Succeed(), "%s: %s", l.place, value)
	})
}

// inForce is a field that the relaxed schemas have: the API server prunes it while another is in force.
const inForce = "relaxed"

func (f *feeder) relaxed(ctx context.Context) (bool, error) {
	raw, err := f.rest.Post().AbsPath(f.path).Param("dryRun", "All").Body(f.object("dry", map[string]any{f.parts[0]: f.spec, inForce: true})).Do(ctx).Raw()
	return strings.Contains(string(raw), inForce), err
}

// each calls see for each value of each leaf of the examples, with what writes it. It returns the places of the leaves.
func (f *feeder) each(t *testing.T, values func(leaf) []string, see func(l leaf, value string, write func() error)) map[string]bool {
	t.Helper()
	g := NewWithT(t)
	seen := map[string]bool{}
	properties := f.crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
	spec, status := properties[f.parts[0]], properties[f.parts[1]]
	// Nothing but the value under test is wrong with an object.
	g.Expect(f.create(t.Context())).To(Succeed())
	g.Expect(f.report(t.Context())).To(Succeed())
	visit(leaf{schema: &spec, place: f.parts[0]}, f.spec, func(l leaf) {
		if seen[l.place] {
			return
		}
		seen[l.place] = true
		for _, value := range values(l) {
			l.set(json.RawMessage(value))
			see(l, value, func() error { return f.create(t.Context()) })
		}
	})
	fresh := false
	visit(leaf{schema: &status, place: f.parts[1]}, f.status, func(l leaf) {
		seen[l.place] = true
		for _, value := range values(l) {
			l.set(json.RawMessage(value))
			if !fresh {
				g.Expect(f.create(t.Context())).To(Succeed())
				fresh = true
			}
			see(l, value, func() error {
				err := f.report(t.Context())
				fresh = err != nil
				return err
			})
		}
	})
	return seen
}

// object is an object in JSON.
func (f *feeder) object(name string, content map[string]any) []byte {
	content["apiVersion"], content["kind"] = f.crd.Spec.Group+"/"+f.crd.Spec.Versions[0].Name, f.crd.Spec.Names.Kind
	content["metadata"] = map[string]any{"name": scalarsNamespace + "-" + name, "labels": f.labels}
	raw, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	return raw
}

// create makes another object of the spec as it is now.
func (f *feeder) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := f.rest.Post().AbsPath(f.path).Body(f.object(strconv.Itoa(f.count+1), map[string]any{f.parts[0]: f.spec})).Do(ctx).Error()
	if err == nil {
		f.count++
	}
	return refusal(err)
}

// report writes the status as it is now into the last object.
func (f *feeder) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	raw, err := json.Marshal(map[string]any{f.parts[1]: f.status})
	if err != nil {
		panic(err)
	}
	path := []string{f.path, scalarsNamespace + "-" + strconv.Itoa(f.count)}
	if f.crd.Spec.Versions[0].Subresources.Status != nil {
		path = append(path, "status")
	}
	return refusal(f.rest.Patch(types.MergePatchType).AbsPath(path...).Body(raw).Do(ctx).Error())
}

// refusal is the error of a request that was answered. Any other is one that took too long.
func refusal(err error) error {
	if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && apierrors.IsTimeout(err) || errors.Is(err, context.DeadlineExceeded) {
		panic(err)
	}
	return err
}

// decodes lists all objects as the programs do.
func (f *feeder) decodes(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	list := f.list.DeepCopyObject().(client.ObjectList)
	err := f.cluster.Client.List(ctx, list)
	if err != nil {
		raw, _ := f.rest.Get().AbsPath(f.path).Do(ctx).Raw()
		culprits := &struct{ Items []json.RawMessage }{}
		g.Expect(json.Unmarshal(raw, culprits)).To(Succeed())
		for _, item := range culprits.Items {
			if err := json.Unmarshal(fmt.Appendf(nil, `{"items":[%s]}`, item), f.list.DeepCopyObject()); err != nil {
				t.Logf("%v: %.2000s", err, item)
				break
			}
		}
	}
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(meta.LenList(list)).To(BeNumerically(">=", f.count))
	t.Logf("%d objects", f.count)
}

// relax has a schema admit any text.
func relax(s *apiextensionsv1.JSONSchemaProps) {
	s.XValidations, s.Pattern, s.MaxLength, s.MinLength = nil, "", nil, nil
	if s.Type == "string" {
		s.Format = ""
	}
	for name, of := range s.Properties {
		relax(&of)
		s.Properties[name] = of
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		relax(s.AdditionalProperties.Schema)
	}
	if s.Items != nil {
		relax(s.Items.Schema)
	}
}
