// SPDX-License-Identifier: Apache-2.0

// Program workload runs in the containers of real machines. Without an argument it does nothing until it is told to end, as the container of a
// pod's sandbox; with an address it serves there, and reports what it sees.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) < 2 {
		<-ctx.Done()
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{Addr: os.Args[1], ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "pod %s as user %d\n", host, os.Getuid())
	})}
	context.AfterFunc(ctx, func() {
		fmt.Println("asked to end")
		_ = server.Close()
	})
	fmt.Printf("pod %s serves as user %d, process %d\n", host, os.Getuid(), os.Getpid())
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
