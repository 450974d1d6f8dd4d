// SPDX-License-Identifier: Apache-2.0

package world

import (
	"os"

	"github.com/go-logr/logr"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// logger returns a logger that writes a file in the log folder.
func (w *World) logger(name string) logr.Logger {
	file, err := os.OpenFile(w.dir.log(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return logr.Discard() // no reason not to start
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logFiles = append(w.logFiles, file)
	return newLogger(file)
}

func newLogger(file *os.File) logr.Logger {
	return zap.New(zap.WriteTo(file), zap.ConsoleEncoder(func(c *zapcore.EncoderConfig) {
		c.EncodeTime = zapcore.ISO8601TimeEncoder
	}), zap.StacktraceLevel(zapcore.DPanicLevel))
}

// RedirectLogs makes the libraries that log for the whole process, Kubernetes' client and controller-runtime, write to
// file instead of a person's terminal.
func RedirectLogs(file *os.File) {
	logger := newLogger(file)
	klog.SetLogger(logger)
	ctrl.SetLogger(logger)
}
