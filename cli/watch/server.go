// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/internal/message"
)

const (
	// probeInterval is the shortest time between two requests that find out whether the API server answers: a watch that breaks off reports
	// nothing.
	probeInterval = 10 * time.Second
	// probeTimeout is how long one of them may take.
	probeTimeout = 3 * time.Second
)

// server is the API server whose objects a table shows.
type server struct {
	host   string
	client rest.Interface
	// asked and answered are when it was asked last, and when it answered last.
	asked, answered time.Time
	problem         error
}

func newServer(config *rest.Config) (*server, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return &server{host: config.Host, client: client.RESTClient(), answered: time.Now()}, nil
}

// probe queries the API server, at most once in probeInterval. One that denies the request answers.
func (s *server) probe(ctx context.Context, now time.Time) {
	if now.Sub(s.asked) < probeInterval {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := s.client.Get().AbsPath("/version").Do(ctx).Error()
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		err = nil
	}
	if s.asked, s.problem = now, err; err == nil {
		s.answered = now
	}
}

// away reports whether the table may be out of date.
func (s *server) away() bool { return s.problem != nil }

// line is about the cluster, and how old what is shown may be.
func (s *server) line(now time.Time) string {
	line := fmt.Sprintf("%s  %s", s.host, now.Format(time.TimeOnly))
	if s.problem == nil {
		return line
	}
	return message.Line(fmt.Sprintf("%s  THE API SERVER DOESN'T ANSWER; the table is as of %s: %v", line, s.answered.Format(time.TimeOnly),
		s.problem))
}
