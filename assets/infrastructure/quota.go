// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/internal/message"
)

const (
	// maxQuotaName bounds the name of a quota, with its placeholders replaced.
	maxQuotaName = 253
	// maxScope bounds the text that a field of a template adds to a quota's name.
	maxScope = 63
)

// Placeholders of a quota's name.
const (
	placeholderFamily       = "{family}"
	placeholderInstanceType = "{instanceType}"
	placeholderCapacityType = "{capacityType}"
	placeholderZone         = "{zone}"
)

var (
	quotaPlaceholders = []string{placeholderFamily, placeholderInstanceType, placeholderCapacityType, placeholderZone}
	placeholder       = regexp.MustCompile(`\{[^{}]*\}`)
	// counted are the resources that quotas count, by their names in profiles.
	counted = map[string]capacity.Resource{
		"machines": capacity.Machines, "cpu": capacity.VCPUs, "memory": capacity.Memory, "gpus": capacity.GPUs,
	}
)

// quota describes machines that the infrastructure counts together.
type quota struct {
	// name, in which placeholders distinguish quotas that are counted apart.
	name string
	// counts is empty if that isn't known.
	counts capacity.Resource
	// instanceTypes match the names of instance types; any if there are none.
	instanceTypes []*regexp.Regexp
	// capacityTypes that it counts; any if there are none.
	capacityTypes []string
	// scope are fields of a template whose content keeps machines apart.
	scope []Path
	// messages match the message of a machine that failed for the lack of this quota. Without any, it is this one unless an earlier one
	// matches.
	messages []*regexp.Regexp
	// remainders find in the message the remainder of the quota, by the group left or by limit and used, in unit.
	remainders []*regexp.Regexp
	unit       string
}

// byFamily is the quota of machines of which no profile declares more: most clouds count by families.
var byFamily = quota{name: placeholderCapacityType + " " + placeholderFamily}

// Countable has the properties of a machine by which quotas count it.
type Countable struct {
	// InstanceType is the infrastructure's name of the instance type, or the platform's.
	InstanceType string
	// Family is the label of the family; empty if there is none. Then the name of the instance type has it.
	Family string
	// Zone as nodes name it, CapacityType, and the region if it is known.
	Zone, CapacityType, Region string
	// Template is the infrastructure machine template; nil if it isn't known.
	Template map[string]any
}

// Quotas returns those that count a machine.
func (k Kind) Quotas(c Countable) (quotas []capacity.QuotaName) {
	k.eachQuota(c, func(q *quota) bool {
		quotas = append(quotas, q.named(c))
		return true
	})
	return quotas
}

// Exceeded returns the quota that a machine lacks by the message of its condition, and the quota's remainder by that message: -1 if it
// reports none.
func (k Kind) Exceeded(c Countable, text string) (exceeded capacity.QuotaName, remaining int64) {
	k.eachQuota(c, func(q *quota) bool {
		if !q.concerns(text) {
			return true
		}
		exceeded, remaining = q.named(c), q.leftBy(text)
		return false
	})
	return exceeded, remaining
}

// concerns reports whether a message is about the quota, unless an earlier one's is.
func (q *quota) concerns(text string) bool {
	return len(q.messages) == 0 || slices.ContainsFunc(q.messages, func(e *regexp.Regexp) bool { return e.MatchString(text) })
}

func (k Kind) eachQuota(c Countable, yield func(*quota) bool) {
	for _, p := range []*Profile{k.profile, k.every} {
		if p == nil {
			continue
		}
		for i := range p.quotas {
			if q := &p.quotas[i]; q.covers(c) && !yield(q) {
				return
			}
		}
	}
	yield(&byFamily)
}

// covers reports whether the quota counts a machine. A family that the platform names takes the place of the instance type's name, which
// may be the platform's own.
func (q *quota) covers(c Countable) bool {
	if len(q.capacityTypes) > 0 && !slices.Contains(q.capacityTypes, c.CapacityType) {
		return false
	}
	name := c.InstanceType
	if c.Family != "" {
		name = c.Family
	}
	return len(q.instanceTypes) == 0 || slices.ContainsFunc(q.instanceTypes, func(e *regexp.Regexp) bool { return e.MatchString(name) })
}

// named returns the quota of a machine. Infrastructures count by regions, and an account may have several.
func (q *quota) named(c Countable) capacity.QuotaName {
	name := strings.NewReplacer(
		placeholderFamily, capacity.Family(c.Family, c.InstanceType), placeholderInstanceType, c.InstanceType,
		placeholderCapacityType, c.CapacityType, placeholderZone, c.Zone,
	).Replace(q.name)
	for _, path := range q.scope {
		if text, found := path.Text(c.Template); found && text != "" {
			name += " " + message.Cut(text, maxScope)
		}
	}
	if c.Region != "" {
		name += " in " + c.Region
	}
	return capacity.QuotaName{Name: message.Cut(name, maxQuotaName), Counts: q.counts}
}

// leftBy returns the quota's remainder by a message, in the unit of the counted resource; -1 if it reports none.
func (q *quota) leftBy(text string) int64 {
	for _, expression := range q.remainders {
		found := expression.FindStringSubmatch(text)
		if found == nil {
			continue
		}
		amount := func(group string) (int64, bool) {
			at := expression.SubexpIndex(group)
			if at < 0 || found[at] == "" || len(found[at]) > 32 {
				return 0, false
			}
			quantity, err := resource.ParseQuantity(found[at] + q.unit)
			switch size := quantity.AsApproximateFloat64(); {
			case err != nil, size < 0, size > 1<<50:
				return 0, false
			case q.counts == capacity.VCPUs:
				return quantity.MilliValue(), true
			}
			return quantity.Value(), true
		}
		if remaining, ok := amount("left"); ok {
			return remaining
		}
		limit, limited := amount("limit")
		used, known := amount("used")
		if limited && known {
			return max(0, limit-used)
		}
	}
	return -1
}

func (d *decoder) quota(at string, item any) (q quota, ok bool) {
	before := len(d.problems)
	d.fields(at, item, map[string]func(string, any){
		"name": func(at string, item any) { q.name = d.quotaName(at, item) },
		"counts": func(at string, item any) {
			q.counts = counted[d.oneOf(at, item, []string{"machines", "cpu", "memory", "gpus"})]
		},
		"instanceTypes": func(at string, item any) { q.instanceTypes = d.expressions(at, item) },
		"capacityTypes": func(at string, item any) {
			d.each(at, item, func(at string, item any) {
				if capacityType := d.oneOf(at, item, capacityTypes); capacityType != "" {
					q.capacityTypes = append(q.capacityTypes, capacityType)
				}
			})
		},
		"scope": func(at string, item any) {
			d.each(at, item, func(at string, item any) {
				if path := d.path(at, item); path.text != "" {
					q.scope = append(q.scope, path)
				}
			})
		},
		"messages": func(at string, item any) { q.messages = d.expressions(at, item) },
		"left": func(at string, item any) {
			for _, expression := range d.expressions(at, item) {
				if expression.SubexpIndex("left") < 0 && (expression.SubexpIndex("limit") < 0 || expression.SubexpIndex("used") < 0) {
					d.report(at, "%q has no group (?P<left>…), nor both (?P<limit>…) and (?P<used>…)", shown(expression.String()))
					continue
				}
				q.remainders = append(q.remainders, expression)
			}
		},
		"unit": func(at string, item any) { q.unit = d.oneOf(at, item, units) },
	})
	if q.name == "" && len(d.problems) == before {
		d.report(at+".name", "is missing: it is what people read, and keeps quotas apart")
	}
	if q.counts == "" && len(q.remainders) > 0 && len(d.problems) == before {
		d.report(at, "has left, but not what the quota counts")
	}
	// The rest of a quota might count more together than was meant.
	return q, len(d.problems) == before
}

func (d *decoder) quotaName(at string, item any) string {
	name := d.text(at, item)
	if len(name) > maxScope {
		d.report(at, "is longer than %d bytes", maxScope)
		return ""
	}
	for _, found := range placeholder.FindAllString(name, -1) {
		if !slices.Contains(quotaPlaceholders, found) {
			d.report(at, "%q is no placeholder; there are %s", shown(found), strings.Join(quotaPlaceholders, ", "))
			return ""
		}
	}
	return name
}

func (d *decoder) expressions(at string, item any) (expressions []*regexp.Regexp) {
	d.each(at, item, func(at string, item any) {
		if expression := d.expression(at, item); expression != nil {
			expressions = append(expressions, expression)
		}
	})
	return expressions
}
