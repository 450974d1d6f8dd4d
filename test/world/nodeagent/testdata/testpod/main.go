// SPDX-License-Identifier: Apache-2.0

// Command testpod is what the node agent's tests run in a container: a server that reports what it sees and fails on
// demand.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", "", "address to serve on")
	exit := flag.Int("exit", -1, "exit code to end with at once")
	linger := flag.Duration("linger", 0, "time between SIGTERM and the end")
	write := flag.String("write", "", "file to append a line to")
	flag.Parse()

	fmt.Println("testpod", os.Getpid(), os.Args[1:])
	if *write != "" {
		file, err := os.OpenFile(*write, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err == nil {
			_, err = fmt.Fprintln(file, os.Getenv("LINE"))
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	if *exit >= 0 {
		os.Exit(*exit)
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	if *listen != "" {
		go serve(*listen)
	}
	<-terminate
	fmt.Println("terminating")
	time.Sleep(*linger)
	fmt.Println("bye")
}

func serve(address string) {
	var sick, unready atomic.Bool
	status := func(bad func() bool) http.HandlerFunc {
		return func(out http.ResponseWriter, _ *http.Request) {
			if bad() {
				out.WriteHeader(http.StatusServiceUnavailable)
			}
		}
	}
	http.HandleFunc("/healthz", status(sick.Load))
	http.HandleFunc("/readyz", status(unready.Load))
	http.HandleFunc("/sick", func(http.ResponseWriter, *http.Request) { sick.Store(true) })
	http.HandleFunc("/unready", func(http.ResponseWriter, *http.Request) { unready.Store(true) })
	http.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) { unready.Store(false) })
	http.HandleFunc("/exit", func(_ http.ResponseWriter, request *http.Request) {
		code, _ := strconv.Atoi(request.URL.Query().Get("code"))
		os.Exit(code)
	})
	http.HandleFunc("/file", func(out http.ResponseWriter, request *http.Request) {
		content, err := os.ReadFile(request.URL.Query().Get("path"))
		if err != nil {
			http.Error(out, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = out.Write(content)
	})
	http.HandleFunc("/self", func(out http.ResponseWriter, _ *http.Request) {
		dir, _ := os.Getwd()
		_ = json.NewEncoder(out).Encode(map[string]any{
			"args": os.Args[1:], "env": os.Environ(), "dir": dir, "pid": os.Getpid(), "program": os.Args[0],
		})
	})
	if err := http.ListenAndServe(address, nil); err != nil {
		_, _ = io.WriteString(os.Stdout, err.Error()+"\n")
		os.Exit(3)
	}
}
