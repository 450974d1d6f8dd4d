// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// guestObject is something that the operator keeps in a guest.
type guestObject struct {
	object client.Object
	// damage changes the operator's fields and adds others, as another client.
	damage func(client.Object)
	// whole is what else has to hold once it is healed, beside the label and others' metadata.
	whole func(Gomega, client.Object)
}

func guestObjects() map[string]guestObject {
	object := func(into client.Object, namespace, name string) client.Object {
		into.SetNamespace(namespace)
		into.SetName(name)
		return into
	}
	return map[string]guestObject{
		"a CustomResourceDefinition": {
			object: object(&apiextensionsv1.CustomResourceDefinition{}, "", "nodeoverlays.karpenter.sh"),
			damage: func(o client.Object) {
				definition := o.(*apiextensionsv1.CustomResourceDefinition)
				definition.Spec.Versions[0].AdditionalPrinterColumns = nil
				definition.Spec.Names.Categories = []string{"mine"}
				definition.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
					Strategy: apiextensionsv1.WebhookConverter,
					Webhook: &apiextensionsv1.WebhookConversion{
						ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: ptr.To("https://nowhere.example")},
					},
				}
			},
			whole: func(g Gomega, o client.Object) {
				definition := o.(*apiextensionsv1.CustomResourceDefinition)
				g.Expect(definition.Spec.Versions[0].AdditionalPrinterColumns).NotTo(BeEmpty())
				g.Expect(definition.Spec.Names.Categories).To(Equal([]string{"karpenter"}))
				g.Expect(definition.Spec.Conversion.Strategy).To(Equal(apiextensionsv1.NoneConverter))
			},
		},
		"the ClusterRole": {
			object: object(&rbacv1.ClusterRole{}, "", "autonode:karpenter"),
			damage: func(o client.Object) {
				role := o.(*rbacv1.ClusterRole)
				role.Rules = role.Rules[:1]
				role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"mine": "1"}}}}
			},
			whole: func(g Gomega, o client.Object) {
				role := o.(*rbacv1.ClusterRole)
				g.Expect(len(role.Rules)).To(BeNumerically(">", 5))
				g.Expect(role.AggregationRule).To(BeNil())
			},
		},
		"the ClusterRoleBinding": {
			object: object(&rbacv1.ClusterRoleBinding{}, "", "autonode:karpenter"),
			damage: func(o client.Object) {
				binding := o.(*rbacv1.ClusterRoleBinding)
				binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: "mallory"})
			},
			whole: func(g Gomega, o client.Object) {
				g.Expect(o.(*rbacv1.ClusterRoleBinding).Subjects).To(Equal([]rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: "karpenter"}}))
			},
		},
		"the ServiceAccount": {
			object: object(&corev1.ServiceAccount{}, "kube-system", "karpenter"),
			damage: func(o client.Object) {
				account := o.(*corev1.ServiceAccount)
				account.AutomountServiceAccountToken = ptr.To(true)
				account.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "theirs"}}
			},
			whole: func(g Gomega, o client.Object) {
				g.Expect(o.(*corev1.ServiceAccount).AutomountServiceAccountToken).To(HaveValue(BeFalse()))
			},
		},
		"the default node class": {
			object: object(&v1alpha1.ClusterAPINodeClass{}, "", v1alpha1.DefaultNodeClass),
			damage: func(o client.Object) {
				class := o.(*v1alpha1.ClusterAPINodeClass)
				class.Spec.InfrastructureTemplateSelectors = nil
				class.Spec.Bootstrap.ConfigTemplateRef.Name = "theirs"
				class.Spec.DefaultArchitecture = "arm64" // an admin's own
			},
			whole: func(g Gomega, o client.Object) {
				class := o.(*v1alpha1.ClusterAPINodeClass)
				g.Expect(class.Spec.InfrastructureTemplateSelectors).To(HaveLen(1))
				g.Expect(class.Spec.Bootstrap.ConfigTemplateRef.Name).To(Equal("default"))
			},
		},
		"an admission policy": {
			object: object(&admissionregistrationv1.ValidatingAdmissionPolicy{}, "", "nodeclasses.autonode.io"),
			damage: func(o client.Object) {
				policy := o.(*admissionregistrationv1.ValidatingAdmissionPolicy)
				policy.Spec.Validations = policy.Spec.Validations[:1] // operator/steps/policy has other ways to weaken one
			},
			whole: func(g Gomega, o client.Object) {
				g.Expect(len(o.(*admissionregistrationv1.ValidatingAdmissionPolicy).Spec.Validations)).To(BeNumerically(">", 5))
			},
		},
		"a policy's binding": {
			object: object(&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, "", "managed.autonode.io"),
			damage: func(o client.Object) {
				o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding).Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn}
			},
			whole: func(g Gomega, o client.Object) {
				actions := o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding).Spec.ValidationActions
				g.Expect(actions).To(Equal([]admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}))
			},
		},
	}
}

// healing changes the guest's objects as another client. The policies admit these tests, because they have the
// operator's user.
func healing(t *testing.T) {
	ctx, guest := t.Context(), clusters.Guest.Client
	others := client.FieldOwner("another-client")
	for name, test := range guestObjects() {
		read := func(g Gomega) client.Object {
			object := test.object.DeepCopyObject().(client.Object)
			g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
			return object
		}
		healed := func(g Gomega) client.Object {
			object := read(g)
			g.Expect(object.GetDeletionTimestamp()).To(BeNil())
			g.Expect(object.GetLabels()).To(HaveKeyWithValue(v1beta1.ManagedByLabel, v1beta1.ManagedByOperator))
			test.whole(g, object)
			return object
		}
		// write tries again, because the operator heals at the same time.
		write := func(g Gomega, change func(client.Object)) {
			g.Eventually(func(g Gomega) {
				object := read(g)
				change(object)
				g.Expect(guest.Update(ctx, object, others)).To(Succeed())
			}).Should(Succeed())
		}
		cases := []struct {
			what string
			do   func(Gomega)
		}{
			{"edits", func(g Gomega) { write(g, test.damage) }},
			{"strips the managed fields of, and edits,", func(g Gomega) {
				write(g, func(o client.Object) { o.SetManagedFields([]metav1.ManagedFieldsEntry{{}}) })
				write(g, test.damage)
			}},
			{"relabels and edits", func(g Gomega) {
				write(g, func(o client.Object) { o.SetLabels(nil); test.damage(o) })
			}},
		}
		for _, c := range cases {
			t.Run(fmt.Sprintf("When a person %s %s, it should be healed at once, and what isn't the operator's stay", c.what, name), func(t *testing.T) {
				g := NewWithT(t)
				write(g, func(o client.Object) { annotate(o, "theirs", "1") })
				c.do(g)
				g.Eventually(func(g Gomega) {
					object := healed(g)
					g.Expect(object.GetAnnotations()).To(HaveKeyWithValue("theirs", "1"))
				}).Should(Succeed())
			})
		}
		if _, slow := test.object.(*apiextensionsv1.CustomResourceDefinition); slow {
			// An API server may take minutes to finish a definition's deletion; that it comes back then operator/steps/crd tests.
			continue
		}
		t.Run(fmt.Sprintf("When a person deletes %s, it should come back at once", name), func(t *testing.T) {
			g := NewWithT(t)
			before := read(g)
			g.Expect(guest.Delete(ctx, before, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
			g.Eventually(func(g Gomega) {
				g.Expect(healed(g).GetUID()).NotTo(Equal(before.GetUID()))
			}).Should(Succeed())
		})
	}
	t.Run("When everything is healed, nothing should be written any more", func(t *testing.T) {
		g := NewWithT(t)
		settled := func(g Gomega, ctx context.Context) map[string]string {
			versions := map[string]string{}
			for name, test := range guestObjects() {
				object := test.object
				g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
				versions[name] = object.GetResourceVersion()
			}
			return versions
		}
		before := settled(g, ctx)
		g.Eventually(func(g Gomega) {
			defer func() { before = settled(g, ctx) }()
			g.Consistently(func(g Gomega) { g.Expect(settled(g, ctx)).To(Equal(before)) }, "1s").Should(Succeed())
		}).Should(Succeed())
	})
}

func annotate(object client.Object, key, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	object.SetAnnotations(annotations)
}
