// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/internal/message"
)

// Limits of a file and of its lists.
const (
	// MaxFileSize is in bytes.
	MaxFileSize = 512 << 10
	maxProfiles = 100
	maxEntries  = 200
	maxText     = 512
	maxShown    = 100
)

// Parse reads a YAML list of profiles. It returns the fields that it understands, and one problem for each other field. The
// error is that of a file which is no YAML list of objects at all.
func Parse(raw []byte) (profiles []*Profile, problems []error, err error) {
	var content any
	if len(raw) > MaxFileSize {
		return nil, nil, fmt.Errorf("it is larger than %d bytes", MaxFileSize)
	}
	if err := yaml.UnmarshalStrict(raw, &content); err != nil {
		return nil, nil, fmt.Errorf("it isn't YAML: %w", err)
	}
	if content == nil {
		return nil, nil, nil
	}
	list, ok := content.([]any)
	if !ok {
		return nil, nil, fmt.Errorf("it isn't a list of profiles")
	}
	d := &decoder{}
	for i, item := range list {
		at := fmt.Sprintf("[%d]", i)
		if i == maxProfiles {
			d.report(at, "more than %d profiles", maxProfiles)
			break
		}
		if p := d.profile(at, item); p != nil {
			if slices.ContainsFunc(profiles, func(other *Profile) bool { return other.GroupKind() == p.GroupKind() }) {
				d.report(at, "%s has a profile already", p.GroupKind())
				continue
			}
			profiles = append(profiles, p)
		}
	}
	return profiles, d.problems, nil
}

// decoder collects problems, each with the field that it is about.
type decoder struct{ problems []error }

func (d *decoder) report(at, format string, args ...any) {
	d.problems = append(d.problems, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
}

// fields reads the known fields of an object, and reports the others. It reports false if the value is no object.
func (d *decoder) fields(at string, value any, known map[string]func(at string, value any)) bool {
	object, ok := value.(map[string]any)
	if !ok {
		d.report(at, "is not an object")
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		where := at + "." + shown(name)
		if read, ok := known[name]; ok {
			read(where, object[name])
			continue
		}
		d.report(where, "no such field; the fields are %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	return true
}

// each reads the items of a list.
func (d *decoder) each(at string, value any, read func(at string, value any)) {
	list, ok := value.([]any)
	if !ok {
		d.report(at, "is not a list")
		return
	}
	for i, item := range list {
		if i == maxEntries {
			d.report(at, "has more than %d items", maxEntries)
			return
		}
		read(fmt.Sprintf("%s[%d]", at, i), item)
	}
}

// usable returns the items of a list that read reports to be of use.
func usable[T any](d *decoder, at string, value any, read func(at string, item any) (T, bool)) (items []T) {
	d.each(at, value, func(at string, value any) {
		if item, ok := read(at, value); ok {
			items = append(items, item)
		}
	})
	return items
}

// text reads a string that isn't empty, and reports anything else.
func (d *decoder) text(at string, value any) string {
	text, ok := value.(string)
	if !ok || text == "" || len(text) > maxText {
		d.report(at, "is not a string of 1 to %d bytes", maxText)
		return ""
	}
	return text
}

func (d *decoder) texts(at string, value any) (texts []string) {
	d.each(at, value, func(at string, value any) {
		if text := d.text(at, value); text != "" {
			texts = append(texts, text)
		}
	})
	return texts
}

// oneOf reads one of the allowed strings, or "".
func (d *decoder) oneOf(at string, value any, allowed []string) string {
	text := d.text(at, value)
	if text != "" && !slices.Contains(allowed, text) {
		d.report(at, "%q is not one of %s", shown(text), strings.Join(allowed, ", "))
		return ""
	}
	return text
}

func (d *decoder) path(at string, value any) (p Path) {
	if text := d.text(at, value); text != "" {
		var err error
		if p, err = parsePath(text); err != nil {
			d.report(at, "%q %s", shown(text), err)
		}
	}
	return p
}

func (d *decoder) expression(at string, value any) *regexp.Regexp {
	text := d.text(at, value)
	if text == "" {
		return nil
	}
	expression, err := regexp.Compile(text)
	if err != nil {
		d.report(at, "%q is not a regular expression: %s", shown(text), err)
		return nil
	}
	return expression
}

// shown cuts a user's text to a length that fits a message.
func shown(text string) string { return message.Cut(text, maxShown) }

func (d *decoder) profile(at string, item any) *Profile {
	p := &Profile{}
	if !d.fields(at, item, map[string]func(string, any){
		"apiGroup":   func(at string, value any) { p.Group = d.text(at, value) },
		"kind":       func(at string, value any) { p.Kind = d.text(at, value) },
		"sources":    func(at string, value any) { p.Sources = d.texts(at, value) },
		"varies":     func(at string, value any) { p.Varies = d.texts(at, value) },
		"template":   func(at string, value any) { d.template(at, value, p) },
		"nodeZone":   func(at string, value any) { p.nodeZone = d.nodeZone(at, value) },
		"conditions": func(at string, value any) { p.conditions = usable(d, at, value, d.rule) },
		"states":     func(at string, value any) { p.states = usable(d, at, value, d.state) },
		"quotas":     func(at string, value any) { p.quotas = usable(d, at, value, d.quota) },
		"machines":   func(at string, value any) { p.machines = d.oneOf(at, value, []string{instances, hosts}) },
		"rebootsBy": func(at string, value any) {
			p.rebootsBy = []string{}
			d.each(at, value, func(at string, value any) {
				switch text := d.text(at, value); {
				case text == "":
				case !strings.HasSuffix(text, remediationSuffix):
					d.report(at, "%q is no kind of remediation templates, such as Metal3RemediationTemplate", shown(text))
				default:
					p.rebootsBy = append(p.rebootsBy, text)
				}
			})
		},
		"addresses": func(at string, value any) {
			d.fields(at, value, map[string]func(string, any){"fromMachine": func(at string, value any) {
				p.fromMachine = []string{}
				d.each(at, value, func(at string, value any) {
					if kind := d.oneOf(at, value, addressTypes); kind != "" {
						p.fromMachine = append(p.fromMachine, kind)
					}
				})
			}})
		},
	}) {
		return nil
	}
	if p.Group == "" || p.Kind == "" {
		d.report(at, "has no apiGroup and kind, which name the infrastructure machine that a profile is for, such as AWSMachine")
		return nil
	}
	p.Kind = strings.TrimSuffix(p.Kind, templateSuffix)
	return p
}

func (d *decoder) template(at string, value any, p *Profile) {
	set := func(field string, check func(d *decoder, at, text string)) func(string, any) {
		return func(at string, value any) {
			d.each(at, value, func(at string, value any) {
				if v, ok := d.value(at, value, check); ok {
					p.addField(field, v)
				}
			})
		}
	}
	d.fields(at, value, map[string]func(string, any){
		fieldInstanceType:    set(fieldInstanceType, nil),
		fieldZone:            set(fieldZone, nil),
		fieldArchitecture:    set(fieldArchitecture, nil),
		fieldOperatingSystem: set(fieldOperatingSystem, nil),
		fieldImage:           set(fieldImage, nil),
		fieldCapacityType: set(fieldCapacityType, func(d *decoder, at, text string) {
			if !slices.Contains(capacityTypes, text) {
				d.report(at, "%q is not one of %s", shown(text), strings.Join(capacityTypes, ", "))
			}
		}),
		"capacity": func(at string, value any) {
			object, ok := value.(map[string]any)
			if !ok {
				d.report(at, "is not an object")
				return
			}
			for _, name := range slices.Sorted(maps.Keys(object)) {
				where := at + "." + shown(name)
				if len(validation.IsQualifiedName(name)) > 0 {
					d.report(where, "is not the name of a resource, such as cpu or nvidia.com/gpu")
					continue
				}
				set(capacityField(name), nil)(where, object[name])
			}
		},
	})
}

// value reads one entry of a template's field. check reports problems of a text that the field would have.
func (d *decoder) value(at string, item any, check func(d *decoder, at, text string)) (v value, ok bool) {
	before := len(d.problems)
	result := func(at string, item any) string {
		text := d.text(at, item)
		if text != "" && check != nil {
			check(d, at, text)
		}
		return text
	}
	d.fields(at, item, map[string]func(string, any){
		"path":  func(at string, item any) { v.path = d.path(at, item) },
		"value": func(at string, item any) { v.constant = result(at, item) },
		"set":   func(at string, item any) { v.set = result(at, item) },
		"times": func(at string, item any) {
			d.each(at, item, func(at string, item any) { v.times = append(v.times, d.path(at, item)) })
		},
		"where": func(at string, item any) {
			w := where{}
			before := len(d.problems)
			d.fields(at, item, map[string]func(string, any){
				"path":   func(at string, item any) { w.path = d.path(at, item) },
				"values": func(at string, item any) { w.values = d.texts(at, item) },
			})
			if len(d.problems) == before && (w.path.text == "" || len(w.values) == 0) {
				d.report(at, "needs path and values")
			}
			v.where = &w
		},
		"unit": func(at string, item any) { v.unit = d.oneOf(at, item, units) },
		"values": func(at string, item any) {
			object, ok := item.(map[string]any)
			if !ok {
				d.report(at, "is not an object")
				return
			}
			v.values = map[string]string{}
			for _, key := range slices.Sorted(maps.Keys(object)) {
				v.values[key] = result(at+"."+shown(key), object[key])
			}
		},
	})
	if len(d.problems) > before {
		return v, false
	}
	if (v.path.text == "") == (v.constant == "") {
		d.report(at, "needs either path or value")
		return v, false
	}
	return v, true
}

func (d *decoder) meaning(at string, item any) Meaning {
	return Meaning(d.oneOf(at, item, meanings))
}

func (d *decoder) rule(at string, item any) (r rule, ok bool) {
	r.status = metav1.ConditionFalse
	before := len(d.problems)
	d.fields(at, item, map[string]func(string, any){
		"means":    func(at string, item any) { r.means = d.meaning(at, item) },
		"type":     func(at string, item any) { r.kind = d.text(at, item) },
		"status":   func(at string, item any) { r.status = metav1.ConditionStatus(d.oneOf(at, item, statuses)) },
		"reasons":  func(at string, item any) { r.reasons = d.texts(at, item) },
		"words":    func(at string, item any) { r.words = d.texts(at, item) },
		"messages": func(at string, item any) { r.messages = d.expressions(at, item) },
	})
	// The rest of a rule is still of use, unless it would match more than was meant.
	switch {
	case r.means == "" && len(d.problems) == before:
		d.report(at+".means", "is missing; it is one of %s", strings.Join(meanings, ", "))
	case r.means != "" && r.status != "" && len(r.reasons)+len(r.words)+len(r.messages) == 0 && (len(d.problems) > before || r.kind == ""):
		d.report(at, "matches nothing: it has neither reasons, words, messages nor a type")
		return r, false
	}
	return r, r.means != "" && r.status != ""
}

func (d *decoder) state(at string, item any) (s state, ok bool) {
	before := len(d.problems)
	d.fields(at, item, map[string]func(string, any){
		"means":  func(at string, item any) { s.means = d.meaning(at, item) },
		"path":   func(at string, item any) { s.path = d.path(at, item) },
		"values": func(at string, item any) { s.values = d.texts(at, item) },
	})
	if len(d.problems) == before && (s.means == "" || s.path.text == "" || len(s.values) == 0) {
		d.report(at, "needs means, path and values")
	}
	return s, s.means != "" && s.path.text != "" && len(s.values) > 0
}
