// SPDX-License-Identifier: Apache-2.0

package scalar

import (
	"encoding/json"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// DecodeStatus decodes a status, as encoding/json does but with the case of keys. Its conditions are others' types: where the time of one
// is malformed, it is the epoch: one that is written back has to have a time. into has no decoder of its own.
func DecodeStatus(data []byte, into any) error {
	if err := utiljson.Unmarshal(data, into); err == nil {
		return nil
	}
	var status map[string]json.RawMessage
	if err := utiljson.Unmarshal(data, &status); err != nil {
		return err
	}
	var conditions []map[string]any
	if err := utiljson.Unmarshal(status["conditions"], &conditions); err != nil {
		return err
	}
	for _, condition := range conditions {
		if condition == nil {
			continue // a null in the list, which decodes as an empty condition
		}
		text, err := json.Marshal(condition["lastTransitionTime"])
		if err != nil {
			return err
		}
		at := Time{}
		if _ = at.UnmarshalJSON(text); at.IsZero() {
			at = NewTime(time.Unix(0, 0))
		}
		condition["lastTransitionTime"] = at.String()
	}
	var err error
	if status["conditions"], err = json.Marshal(conditions); err != nil {
		return err
	}
	if data, err = json.Marshal(status); err != nil {
		return err
	}
	return utiljson.Unmarshal(data, into)
}
