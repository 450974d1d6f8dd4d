// SPDX-License-Identifier: Apache-2.0

// Package vacancy holds what nodes leave that Karpenter terminates before it launches their replacements, because nothing is left to
// launch these beside them: a slot of a reservation, one of the machines that a template may have, a part of the cluster's CapacityLease.
// Until the replacement is initialized, neither another cluster of the account nor another NodePool gets it, and the NodePool's disruption
// budget counts it.
package vacancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/change"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

const (
	// HoldTimeout is how long a vacancy is held while nothing is launched into it, from when the Machine has gone.
	HoldTimeout = 15 * time.Minute
	// MaxAge is how long it is held at most: its replacements may fail for ever.
	MaxAge = 2 * time.Hour
	// Max is how many are held at a time. They are written down in one annotation.
	Max = 64
)

// ErrUnread is returned until the vacancies of earlier processes have been read.
var ErrUnread = errors.New("the vacancies of the Karpenter before this one aren't read yet")

// Vacancy of a node.
type Vacancy struct {
	// NodeClaim that has left it, and its UID.
	NodeClaim string    `json:"nodeClaim"`
	UID       types.UID `json:"uid"`
	NodePool  string    `json:"nodePool"`
	// Source and Offering of its Machine.
	Source   string       `json:"source,omitempty"`
	Offering offering.Key `json:"offering"`
	// Reason is what is full, as the NodeClaim's annotation does.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	// Account and Charges are what is kept of the CapacityLease.
	Account string           `json:"account,omitempty"`
	Charges capacity.Amounts `json:"charges,omitempty"`

	// holder is the name of the NodeClaim for which the CapacityLease's part is kept: the one that has left, or the latest replacement.
	holder string
	// filler is the NodeClaim that has been launched into it; empty for none.
	filler string
	// gone is since when nothing has been in it; zero if that isn't known yet.
	gone time.Time
}

// IsOpen reports whether nothing has been launched into it, and the Machine has gone.
func (v *Vacancy) IsOpen() bool { return v.filler == "" && !v.gone.IsZero() }

// Filler returns the name of the NodeClaim that has been launched into it; empty for none.
func (v *Vacancy) Filler() string { return v.filler }

// Gone returns since when nothing has been in it; zero if something is.
func (v *Vacancy) Gone() time.Time { return v.gone }

// Memory outlives processes. Only the elected process uses it.
type Memory interface {
	// Vacancies returns what was written last; empty for nothing.
	Vacancies(ctx context.Context) (string, error)
	// RememberVacancies writes it. It writes nothing if it is there already.
	RememberVacancies(ctx context.Context, vacancies string) error
}

// Config of a Keeper.
type Config struct {
	Clock     clock.PassiveClock
	Capacity  *capacityprovider.Provider
	Inventory *inventory.Inventory
	// Memory is nil in a process that launches nothing.
	Memory Memory
}

// Keeper of the cluster's vacancies. It is safe for concurrent use.
type Keeper struct {
	Config
	// observers are notified when a vacancy comes, opens, is filled or ends.
	observers change.Notifier

	// writing is held while the vacancies are written down, and written is what was last.
	writing sync.Mutex
	written string

	mu        sync.Mutex
	read      bool
	vacancies []*Vacancy // in the order in which they came
	// fillers are the vacancies' NodeClaims, by those launched into them before the vacancies were read.
	fillers map[string]string
}

// New returns a Keeper that is empty before Load.
func New(config Config) *Keeper {
	return &Keeper{Config: config, read: config.Memory == nil, fillers: map[string]string{}}
}

// OnChange calls f whenever a vacancy comes, opens, is filled or ends. f must neither block nor call the Keeper.
func (k *Keeper) OnChange(f func()) { k.observers.Add(f) }

// Load reads what earlier processes have written, once this process is elected.
func (k *Keeper) Load(ctx context.Context) error {
	k.mu.Lock()
	done := k.read
	k.mu.Unlock()
	if done {
		return nil
	}
	k.writing.Lock()
	defer k.writing.Unlock()
	text, err := k.Memory.Vacancies(ctx)
	if err != nil {
		return fmt.Errorf("reading the vacancies: %w", err)
	}
	k.written = text
	var vacancies []*Vacancy
	if text != "" {
		// Only Karpenter writes it. Malformed vacancies can't be held.
		if err := json.Unmarshal([]byte(text), &vacancies); err != nil {
			vacancies = nil
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.read {
		return nil
	}
	k.read = true
	for _, v := range vacancies {
		if v != nil && v.NodeClaim != "" && len(k.vacancies) < Max {
			v.holder, v.filler = v.NodeClaim, k.fillers[v.NodeClaim]
			if v.filler != "" {
				v.holder = v.filler
			}
			k.vacancies = append(k.vacancies, v)
		}
	}
	k.observers.Notify()
	return nil
}

// Open returns nil once it is known what is held.
func (k *Keeper) Open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.read {
		return ErrUnread
	}
	return nil
}

// Kept returns what earlier processes have kept of the CapacityLease, for capacity.Config.
func (k *Keeper) Kept(ctx context.Context) ([]capacityprovider.Kept, error) {
	if err := k.Load(ctx); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var kept []capacityprovider.Kept
	for _, v := range k.vacancies {
		if v.Account != "" {
			kept = append(kept, capacityprovider.Kept{Name: v.NodeClaim, Account: v.Account, Charges: v.Charges})
		}
	}
	return kept, nil
}

// Hold writes down the vacancy that a NodeClaim's Machine will leave. Only then may that be deleted. A second call for the same NodeClaim
// changes nothing.
func (k *Keeper) Hold(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	if err := k.Load(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	// What a NodeClaim leaves that was launched into a vacancy is that vacancy again.
	if k.find(nodeClaim.Name) == nil && !slices.ContainsFunc(k.vacancies, func(v *Vacancy) bool { return v.holder == nodeClaim.Name }) {
		v := &Vacancy{
			NodeClaim: nodeClaim.Name, UID: nodeClaim.UID, NodePool: nodeClaim.Labels[karpv1.NodePoolLabelKey], holder: nodeClaim.Name,
			Reason: nodeClaim.Annotations[v1alpha1.TerminateFirstAnnotation], Since: k.Clock.Now(),
		}
		m, exists := k.Inventory.Machine(nodeClaim.UID)
		if !exists || len(k.vacancies) >= Max {
			k.mu.Unlock()
			return nil
		}
		v.Source, v.Offering = m.Source, m.Key
		if kept, counts := k.Capacity.Keep(nodeClaim.Name); counts {
			v.Account, v.Charges = kept.Account, kept.Charges
		}
		k.vacancies = append(k.vacancies, v)
		k.observers.Notify()
	}
	k.mu.Unlock()
	return k.Save(ctx)
}

// Save writes down what is held, if it has changed.
func (k *Keeper) Save(ctx context.Context) error {
	if k.Memory == nil {
		return nil
	}
	k.writing.Lock()
	defer k.writing.Unlock()
	k.mu.Lock()
	if !k.read {
		k.mu.Unlock()
		return ErrUnread
	}
	text := ""
	if len(k.vacancies) > 0 {
		encoded, err := json.Marshal(k.vacancies)
		if err != nil {
			k.mu.Unlock()
			return fmt.Errorf("encoding the vacancies: %w", err)
		}
		text = string(encoded)
	}
	k.mu.Unlock()
	if text == k.written {
		return nil
	}
	if err := k.Memory.RememberVacancies(ctx, text); err != nil {
		return fmt.Errorf("writing down the vacancies: %w", err)
	}
	k.written = text
	return nil
}

// Of returns the holders of a NodePool's vacancies, by which capacity.Provider identifies them.
func (k *Keeper) Of(nodePool string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var holders []string
	for _, v := range k.vacancies {
		if v.NodePool != nodePool {
			continue
		}
		holders = append(holders, v.holder)
		if v.holder != v.NodeClaim {
			holders = append(holders, v.NodeClaim) // as for a process that hasn't seen the replacement
		}
	}
	return holders
}

// OthersOf returns how many vacancies of other NodePools are open for machines of a source.
func (k *Keeper) OthersOf(nodePool, source string) int {
	return k.others(nodePool, func(v *Vacancy) bool { return v.Source == source })
}

// OthersIn returns how many vacancies of other NodePools are open in a reservation.
func (k *Keeper) OthersIn(nodePool, reservation string) int {
	return k.others(nodePool, func(v *Vacancy) bool { return v.Offering.Reservation == reservation })
}

func (k *Keeper) others(nodePool string, has func(*Vacancy) bool) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for _, v := range k.vacancies {
		if v.NodePool != nodePool && v.IsOpen() && has(v) {
			n++
		}
	}
	return n
}

// Count returns how many vacancies a NodePool has, filled ones included, and all.
func (k *Keeper) Count(nodePool string) (own, all int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.vacancies {
		if v.NodePool == nodePool {
			own++
		}
	}
	return own, len(k.vacancies)
}

// All returns copies of the vacancies.
func (k *Keeper) All() []Vacancy {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]Vacancy, 0, len(k.vacancies))
	for _, v := range k.vacancies {
		all = append(all, *v)
	}
	return all
}

// Fill records that a NodeClaim is launched into a vacancy: the one whose part of the CapacityLease it took over, if it did, else one of
// its NodePool from the same source or in the same reservation. It returns the NodeClaim that has left it; empty for none. A second call
// for the same NodeClaim returns the same.
func (k *Keeper) Fill(nodeClaim *karpv1.NodeClaim, source, reservation string) string {
	took := k.Capacity.Took(nodeClaim.Name)
	k.mu.Lock()
	defer k.mu.Unlock()
	var fits *Vacancy
	for _, v := range k.vacancies {
		switch {
		case v.filler == nodeClaim.Name:
			return v.NodeClaim
		case took != "" && (v.holder == took || v.NodeClaim == took):
			k.fill(v, nodeClaim.Name)
			return v.NodeClaim
		case fits == nil && v.IsOpen() && v.NodePool == nodeClaim.Labels[karpv1.NodePoolLabelKey] && v.serves(source, reservation):
			fits = v
		}
	}
	if fits == nil || took != "" {
		return ""
	}
	k.Capacity.Release(fits.holder) // it has taken what it needs from elsewhere
	k.fill(fits, nodeClaim.Name)
	return fits.NodeClaim
}

func (v *Vacancy) serves(source, reservation string) bool {
	if v.Offering.Reservation != "" {
		return v.Offering.Reservation == reservation
	}
	return reservation == "" && v.Source == source
}

func (k *Keeper) fill(v *Vacancy, nodeClaim string) {
	v.filler, v.holder, v.gone = nodeClaim, nodeClaim, time.Time{}
	k.observers.Notify()
}

// ObserveMachine records which vacancy a NodeClaim's Machine fills, as the Machine declares: an earlier process may have launched it.
func (k *Keeper) ObserveMachine(nodeClaim, replaces string) {
	if replaces == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.read {
		k.fillers[replaces] = nodeClaim
	}
	if v := k.find(replaces); v != nil && v.filler == "" && !v.left(nodeClaim) {
		k.fill(v, nodeClaim)
	}
}

// left reports whether a NodeClaim was launched into the vacancy and has left it.
func (v *Vacancy) left(nodeClaim string) bool { return v.holder == nodeClaim && v.filler == "" }

// Settle records which Machines have gone: a process that has just been elected gets no event of those.
func (k *Keeper) Settle(exists func(nodeClaim types.UID) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.vacancies {
		if v.filler == "" && v.gone.IsZero() && !exists(v.UID) {
			v.gone = k.Clock.Now()
			k.observers.Notify()
		}
	}
}

// Release records that a NodeClaim has no Machine any more, or never will. The vacancy that it has left, or was launched into, is open.
func (k *Keeper) Release(nodeClaim string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.vacancies {
		if v.filler == nodeClaim || v.filler == "" && v.NodeClaim == nodeClaim && v.gone.IsZero() {
			v.filler, v.gone = "", k.Clock.Now()
			k.observers.Notify()
		}
	}
}

// End ends a vacancy: the replacement is initialized, or none is needed any more.
func (k *Keeper) End(nodeClaim string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if v := k.find(nodeClaim); v != nil {
		k.Capacity.Release(v.holder)
		k.Capacity.Release(v.NodeClaim)
		k.vacancies = slices.DeleteFunc(k.vacancies, func(other *Vacancy) bool { return other == v })
		k.observers.Notify()
	}
}

// Expired reports whether a vacancy has been held for as long as it may.
func (v *Vacancy) Expired(now time.Time) bool {
	return now.Sub(v.Since) >= MaxAge || !v.gone.IsZero() && now.Sub(v.gone) >= HoldTimeout
}

// find returns the vacancy that a NodeClaim has left, or is about to. k.mu must be held.
func (k *Keeper) find(nodeClaim string) *Vacancy {
	i := slices.IndexFunc(k.vacancies, func(v *Vacancy) bool { return v.NodeClaim == nodeClaim })
	if i < 0 {
		return nil
	}
	return k.vacancies[i]
}
