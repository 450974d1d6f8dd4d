// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Record is what is read of an audit.k8s.io/v1 Event.
type Record struct {
	Stage          string    `json:"stage"`
	StageTimestamp time.Time `json:"stageTimestamp"`
	RequestURI     string    `json:"requestURI"`
	Verb           string    `json:"verb"`
	UserAgent      string    `json:"userAgent"`
	User           struct {
		Username string `json:"username"`
	} `json:"user"`
	// ImpersonatedUser is the user of the request if its sender, such as a proxy, impersonates.
	ImpersonatedUser struct {
		Username string `json:"username"`
	} `json:"impersonatedUser"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"`
}

// Resource has the subresource, if any: pods/eviction. It is empty for a URL that is no object's, such as /healthz.
func (r *Record) Resource() string {
	switch {
	case r.ObjectRef == nil:
		return ""
	case r.ObjectRef.Subresource != "":
		return r.ObjectRef.Resource + "/" + r.ObjectRef.Subresource
	default:
		return r.ObjectRef.Resource
	}
}

// Each reads an audit log, one JSON object a line, and returns how many bytes those lines are. What follows the last line's end is left
// out: an API server may be writing it, or was killed meanwhile.
func Each(log io.Reader, do func(*Record)) (size int64, err error) {
	reader := bufio.NewReaderSize(log, 1<<20)
	for number := 1; ; number++ {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, fmt.Errorf("reading an audit log: %w", err)
		}
		r := &Record{}
		if err := json.Unmarshal(line, r); err != nil {
			return size, fmt.Errorf("reading line %d of an audit log: %w", number, err)
		}
		size += int64(len(line))
		do(r)
	}
}
