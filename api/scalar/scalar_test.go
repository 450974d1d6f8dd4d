// SPDX-License-Identifier: Apache-2.0

package scalar_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/autonode-io/autonode/api/scalar"
)

// TestParseQuantity has quantities that an API server admits. An exponent of nine digits would take half an hour.
func TestParseQuantity(t *testing.T) {
	for text, want := range map[string]string{
		"17179869184": "17179869184", "16Gi": "16Gi", "+100m": "+100m", "-1": "-1", ".5": "500m", "1e3": "1e3", "1E": "1E", "0": "0", "1e-99": "1e-9",
		strings.Repeat("9", scalar.MaxQuantity): strings.Repeat("9", scalar.MaxQuantity),
	} {
		t.Run("When it is "+text+", it should be parsed", func(t *testing.T) {
			if got, err := scalar.ParseQuantity(text); err != nil || got.String() != want {
				t.Errorf("ParseQuantity(%q) = %s, %v, want %s", text, got.String(), err, want)
			}
		})
	}
	for _, text := range []string{
		"", " ", "1 ", ".", "1..2", "four", "1e-999999999", "1e999999999", "-1E+1000000000", "1e100", "1e1.5", "0x10", "1GB", "٣", strings.Repeat("9", scalar.MaxQuantity+1),
	} {
		t.Run("When it is "+text+", it should not be a quantity", func(t *testing.T) {
			if got, err := scalar.ParseQuantity(text); err == nil || err.Error() != "is not a quantity" {
				t.Errorf("ParseQuantity(%q) = %s, %v", text, got.String(), err)
			}
		})
	}
}

// object has a field of each type.
type object struct {
	Quantity scalar.Quantity `json:"quantity"`
	Time     *scalar.Time    `json:"time"`
	Duration scalar.Duration `json:"duration"`
}

func TestDecode(t *testing.T) {
	malformed := func(text string) *scalar.Time { return &scalar.Time{Malformed: text} }
	at := scalar.NewTime(time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC))
	hour := scalar.Duration{Duration: time.Hour}
	for name, test := range map[string]struct {
		text string
		want object
		// encoded is empty where it is text.
		encoded string
	}{
		"small numbers":            {text: `{"quantity":64,"time":"2026-12-01T06:00:00Z","duration":"1h0m0s"}`, want: object{Quantity: scalar.Number(64), Time: &at, Duration: hour}},
		"bytes of memory":          {text: `{"quantity":17179869184,"time":null,"duration":"0s"}`, want: object{Quantity: scalar.Number(17179869184)}},
		"text":                     {text: `{"quantity":"16Gi","time":"2026-12-01T06:00:00Z","duration":"1h0m0s"}`, want: object{Quantity: scalar.Text("16Gi"), Time: &at, Duration: hour}},
		"the smallest number":      {text: `{"quantity":-9223372036854775808,"time":null,"duration":"0s"}`, want: object{Quantity: scalar.Number(-1 << 63)}},
		"lower case":               {text: `{"time":"2026-12-01t06:00:00z"}`, want: object{Time: &at}, encoded: `{"quantity":0,"time":"2026-12-01T06:00:00Z","duration":"0s"}`},
		"what is malformed":        {text: `{"quantity":"1e-999999999","time":"2026-12-01T06:00:00ZTx","duration":"a day"}`, want: object{Quantity: scalar.Text("1e-999999999"), Time: malformed("2026-12-01T06:00:00ZTx"), Duration: scalar.Duration{Malformed: "a day"}}},
		"a time beyond its zone":   {text: `{"quantity":0,"time":"2026-12-01T06:00:00+99:99","duration":"0s"}`, want: object{Time: malformed("2026-12-01T06:00:00+99:99")}},
		"values of other types":    {text: `{"quantity":[1],"time":7,"duration":{"a":"b"}}`, want: object{Quantity: scalar.Text("[1]"), Time: malformed("7"), Duration: scalar.Duration{Malformed: `{"a":"b"}`}}, encoded: `{"quantity":"[1]","time":"7","duration":"{\"a\":\"b\"}"}`},
		"a duration out of bounds": {text: `{"quantity":0,"time":null,"duration":"9223372036854775807h"}`, want: object{Duration: scalar.Duration{Malformed: "9223372036854775807h"}}},
	} {
		t.Run("When it has "+name+", it should be decoded, and encoded again", func(t *testing.T) {
			got := object{}
			if err := json.Unmarshal([]byte(test.text), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}
			if !equality.Semantic.DeepEqual(test.want, got) {
				t.Errorf("decoded %+v, which is not equal to %+v", got, test.want)
			}
			raw, err := json.Marshal(got)
			if want := test.encoded; err != nil || string(raw) != test.text && string(raw) != want {
				t.Errorf("encoded %s, %v, want %s or %s", raw, err, test.text, want)
			}
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&got)
			if err != nil {
				t.Fatal(err)
			}
			again := object{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &again); err != nil {
				t.Fatal(err)
			}
			if encoded, err := json.Marshal(again); err != nil || string(encoded) != string(raw) {
				t.Errorf("by way of unstructured %s, %v, want %s", encoded, err, raw)
			}
		})
	}
}

func TestEncodeAsIntOrString(t *testing.T) {
	for _, value := range []intstr.IntOrString{{}, intstr.FromInt32(4), intstr.FromInt32(-4), intstr.FromString("4"), intstr.FromString("16Gi"), intstr.FromString("")} {
		t.Run("When it was the IntOrString "+value.String()+", it should be encoded as that was", func(t *testing.T) {
			want, errWant := json.Marshal(value)
			got, errGot := json.Marshal(scalar.Quantity(value))
			if errWant != nil || errGot != nil || string(want) != string(got) {
				t.Errorf("%s, %v, want %s, %v", got, errGot, want, errWant)
			}
		})
	}
}

func TestParse(t *testing.T) {
	t.Run("When a number has an exponent, it should ask for quotes: the API server admits none", func(t *testing.T) {
		q := scalar.Quantity{}
		if err := json.Unmarshal([]byte("1e-999999999"), &q); err != nil || q.String() != "1e-999999999" {
			t.Fatal(q, err)
		}
		if _, err := q.Parse(); err == nil || err.Error() != "is not a whole number; quote it" {
			t.Error(err)
		}
	})
	t.Run("When it is beyond 32 bits, it should be a quantity", func(t *testing.T) {
		if got := scalar.Number(17179869184).Amount(); got.Value() != 17179869184 {
			t.Error(got.String())
		}
	})
}

func TestDecodeStatus(t *testing.T) {
	type status struct {
		Conditions []metav1.Condition `json:"conditions"`
		Count      int64              `json:"count"`
	}
	decode := func(times ...string) status {
		var conditions []string
		for _, at := range times {
			conditions = append(conditions, `{"type":"Ready","status":"True","reason":"A","message":"b","observedGeneration":3,"lastTransitionTime":`+at+`}`)
		}
		s := status{}
		if err := scalar.DecodeStatus([]byte(`{"count":9007199254740993,"conditions":[`+strings.Join(conditions, ",")+`]}`), &s); err != nil {
			t.Fatal(err)
		}
		if s.Count != 9007199254740993 || len(s.Conditions) != len(times) || s.Conditions[0].Reason != "A" || s.Conditions[0].ObservedGeneration != 3 {
			t.Fatalf("decoded %+v", s)
		}
		return s
	}
	t.Run("When times of conditions are malformed, it should decode the others, and what can be read of these", func(t *testing.T) {
		s := decode(`"2026-12-01T06:00:00Z"`, `"2026-12-01t06:00:00z"`, `"2026-12-01T06:00:00ZTx"`, `7`)
		want := time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC)
		for i, want := range []time.Time{want, want, time.Unix(0, 0), time.Unix(0, 0)} {
			if got := s.Conditions[i].LastTransitionTime; !got.Time.Equal(want) {
				t.Errorf("condition %d is of %s, want %s", i, got, want)
			}
		}
	})
	t.Run("When a condition is null beside one with a malformed time, it should be empty", func(t *testing.T) {
		s := status{}
		err := scalar.DecodeStatus([]byte(`{"conditions":[null,{"type":"Ready","lastTransitionTime":"2026-12-01t06:00:00z"}]}`), &s)
		if err != nil || len(s.Conditions) != 2 || s.Conditions[0].Type != "" || s.Conditions[1].Type != "Ready" {
			t.Errorf("decoded %+v: %v", s, err)
		}
	})
	t.Run("When something else is malformed, it should be an error", func(t *testing.T) {
		if err := scalar.DecodeStatus([]byte(`{"count":"many","conditions":[]}`), &status{}); err == nil {
			t.Error("decoded")
		}
	})
}
