// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// ErrUnread is why a node class's templates and the Cluster can't be read before Offer.
var ErrUnread = errors.New("nothing has been read yet")

// Templates are those that node classes select, as a test sets them. It is safe for concurrent use.
type Templates struct {
	mu      sync.Mutex
	cluster *template.Cluster
	found   map[string]*template.Found
}

// Offer sets the templates that a node class selects from now on, and the gaps in them.
func (t *Templates) Offer(nodeClass string, templates []template.Template, cluster template.Cluster, gaps template.Gaps) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := &template.Found{Templates: templates}
	if gaps.All {
		found.Unreadable = []error{ErrUnread}
	}
	for _, source := range gaps.Sources {
		kind, name, _ := strings.Cut(source, "/")
		found.Invalid = append(found.Invalid, &template.InvalidError{Source: template.Source{GroupKind: schema.ParseGroupKind(kind), Name: name}})
	}
	if t.found == nil {
		t.found = map[string]*template.Found{}
	}
	t.found[nodeClass], t.cluster = found, &cluster
}

// Resolve returns the node class's last Offer.
func (t *Templates) Resolve(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) (*template.Found, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, ok := t.found[nodeClass.Name]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("node class %s: %w", nodeClass.Name, ErrUnread)
}

// Cluster returns the cluster of the last Offer.
func (t *Templates) Cluster(context.Context) (template.Cluster, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cluster == nil {
		return template.Cluster{}, ErrUnread
	}
	return *t.cluster, nil
}

// Lose makes the Cluster unreadable.
func (t *Templates) Lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cluster = nil
}
