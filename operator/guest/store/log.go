// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// withAnswers returns a context in which a reflector logs at error level only errors that an API server has returned. One guest that
// goes away fails a dozen watches again and again; condition GuestReachable reports that once.
func withAnswers(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.FromContext(ctx).WithSink(answersOnly{klog.FromContext(ctx).GetSink()}))
}

// answersOnly logs errors that no API server has returned at level 1.
type answersOnly struct{ logr.LogSink }

// Error implements logr.LogSink.
func (a answersOnly) Error(err error, message string, keysAndValues ...any) {
	if status := apierrors.APIStatus(nil); err == nil || errors.As(err, &status) {
		a.LogSink.Error(err, message, keysAndValues...)
		return
	}
	if a.Enabled(1) {
		a.Info(1, message, append(keysAndValues, "error", err.Error())...)
	}
}

// WithValues implements logr.LogSink.
func (a answersOnly) WithValues(keysAndValues ...any) logr.LogSink {
	return answersOnly{a.LogSink.WithValues(keysAndValues...)}
}

// WithName implements logr.LogSink.
func (a answersOnly) WithName(name string) logr.LogSink { return answersOnly{a.LogSink.WithName(name)} }
