// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/cli/command"
)

// completionTimeout is how long a shell waits for names.
const completionTimeout = 5 * time.Second

// Complete completes the names of a kind's objects as values of flags, in all namespaces; the flag "" is the command's argument, which is
// completed in one namespace, as kubectl does.
func (f *Flags) Complete(cmd *cobra.Command, object client.Object, flags ...string) {
	for _, flag := range flags {
		command.Complete(cmd, flag, func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if !f.Chosen() || flag == "" && len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
			defer cancel()
			c, err := f.Client()
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			namespace, _, whole := strings.Cut(typed, "/")
			if flag != "" {
				namespace, whole = "", true
			} else if !whole {
				usual, _ := f.Namespace()
				namespace, _ = cmd.Flags().GetString("namespace") // a command for a node has none
				namespace = cmp.Or(namespace, usual)
			}
			var names []string
			keys, _ := keysOf(ctx, c, object, client.InNamespace(namespace)) // of a cluster that can't be read there are none
			for _, key := range keys {
				if whole && key.Namespace != "" {
					key.Name = key.String()
				}
				names = append(names, key.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		})
	}
}

// keysOf lists the objects of a kind by their metadata.
func keysOf(ctx context.Context, c client.Client, object client.Object, opts ...client.ListOption) ([]client.ObjectKey, error) {
	kind, err := c.GroupVersionKindFor(object)
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := c.List(ctx, list, opts...); err != nil {
		return nil, fmt.Errorf("listing objects of kind %s: %w", kind.Kind, err)
	}
	keys := make([]client.ObjectKey, len(list.Items))
	for i := range list.Items {
		keys[i] = client.ObjectKeyFromObject(&list.Items[i])
	}
	return keys, nil
}

// Find returns the key of an object, as Key does. If there is none of that name, but one in a single other namespace, it is an error that
// says where. An object is of one of several kinds.
func (f *Flags) Find(ctx context.Context, argument, namespace, what string, objects ...client.Object) (client.ObjectKey, error) {
	key, err := f.Key(argument, namespace, what)
	if err != nil {
		return key, err
	}
	c, err := f.Client()
	if err != nil {
		return key, err
	}
	var elsewhere []client.ObjectKey
	for _, object := range objects {
		found, err := keysOf(ctx, c, object, client.MatchingFields{"metadata.name": key.Name})
		if err != nil || slices.Contains(found, key) {
			return key, nil //nolint:nilerr // the command reports what can't be read
		}
		if len(elsewhere) == 0 {
			elsewhere = found
		}
	}
	if len(elsewhere) != 1 {
		return key, nil // the command reports that there is none
	}
	return key, fmt.Errorf("%q is in namespace %s, not in %s: name it %s", key.Name, elsewhere[0].Namespace, key.Namespace, elsewhere[0])
}

// Named returns the item of a name; without a name all. An error names those that there are.
func Named[T any](all []T, kind, name string, nameOf func(*T) string) ([]T, error) {
	if name == "" {
		return all, nil
	}
	var names []string
	for i := range all {
		switch found := nameOf(&all[i]); found {
		case name:
			return all[i : i+1], nil
		case "":
		default:
			names = append(names, found)
		}
	}
	return nil, fmt.Errorf("there is no %s %q; there are %s", kind, name, cmp.Or(strings.Join(names, ", "), "none"))
}
