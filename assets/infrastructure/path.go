// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Path leads to a field of an object, such as spec.template.spec.disks[0].size or metadata.annotations['example.org/type'].
type Path struct {
	text  string
	steps []step
}

// step is a key of an object, or an index of a list if key is empty.
type step struct {
	key   string
	index int
}

// ParsePath parses a path.
func ParsePath(text string) (Path, error) { return parsePath(text) }

// Text returns the field's string, number or boolean as text; false if the object has none there.
func (p Path) Text(object map[string]any) (string, bool) {
	value, ok := p.find(object)
	if !ok {
		return "", false
	}
	return scalar(value)
}

// maxPath is in bytes.
const maxPath = 256

var errPath = errors.New("is not a path such as spec.template.spec.disks[0].size or metadata.annotations['example.org/type']")

// pathStep is a name, an index, or a quoted key.
var pathStep = regexp.MustCompile(`^(?:\.?([A-Za-z_][A-Za-z0-9_-]*)|\[([0-9]{1,4})\]|\['([^']+)'\])`)

func parsePath(text string) (Path, error) {
	if text == "" || len(text) > maxPath || strings.HasPrefix(text, ".") {
		return Path{}, errPath
	}
	p := Path{text: text}
	for rest := text; rest != ""; {
		found := pathStep.FindStringSubmatch(rest)
		switch {
		case found == nil, len(p.steps) == 0 && found[1] == "", len(p.steps) > 0 && found[1] != "" && rest[0] != '.':
			return Path{}, errPath
		case found[2] != "":
			index, err := strconv.Atoi(found[2])
			if err != nil {
				return Path{}, errPath
			}
			p.steps = append(p.steps, step{index: index})
		default:
			p.steps = append(p.steps, step{key: found[1] + found[3]})
		}
		rest = rest[len(found[0]):]
	}
	return p, nil
}

// String is the path as it was written.
func (p Path) String() string { return p.text }

// find returns the field's value; false if the object has no such field, or null there.
func (p Path) find(object map[string]any) (any, bool) {
	var value any = object
	for _, s := range p.steps {
		switch at := value.(type) {
		case map[string]any:
			if s.key == "" {
				return nil, false
			}
			value = at[s.key]
		case []any:
			if s.key != "" || s.index >= len(at) {
				return nil, false
			}
			value = at[s.index]
		default:
			return nil, false
		}
	}
	return value, value != nil
}

// scalar formats a string, a number or a boolean.
func scalar(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return strings.TrimSpace(v), true
	case bool, int64, int, int32:
		return fmt.Sprint(v), true
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), true
	}
	return "", false
}
