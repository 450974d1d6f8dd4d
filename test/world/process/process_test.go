// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/autonode-io/autonode/test/world/process"
)

// parentEnv makes this test binary a world that starts a child, prints its PID and lives until it is killed.
const parentEnv = "AUTONODE_TEST_PARENT_LOGS"

func TestMain(m *testing.M) {
	if logs := os.Getenv(parentEnv); logs != "" {
		supervisor, err := process.NewSupervisor(logs, nil)
		if err != nil {
			panic(err)
		}
		child, err := supervisor.Start(process.Spec{Name: "child", Path: "/bin/sh", Args: []string{"-c", "while :; do read x <&-; done"}})
		if err != nil {
			panic(err)
		}
		fmt.Println(child.PID)
		select {}
	}
	goleak.VerifyTestMain(m)
}

func newSupervisor(t *testing.T) *process.Supervisor {
	supervisor, err := process.NewSupervisor(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(supervisor.Stop)
	return supervisor
}

func shell(name, script string) process.Spec {
	return process.Spec{Name: name, Path: "/bin/sh", Args: []string{"-c", script}, Grace: 10 * time.Second}
}

func alive(pid int) func() error {
	return func() error { return syscall.Kill(pid, 0) }
}

func TestSupervisor(t *testing.T) {
	t.Run("When a process ends by itself, it should be reported with the end of its log", func(t *testing.T) {
		g := NewWithT(t)
		supervisor := newSupervisor(t)
		_, err := supervisor.Start(shell("broken", "echo no such file; exit 3"))
		g.Expect(err).NotTo(HaveOccurred())
		var failure error
		g.Eventually(supervisor.Failed()).Should(Receive(&failure))
		g.Expect(failure).To(MatchError(SatisfyAll(
			ContainSubstring("broken ended by itself: exit status 3"), ContainSubstring("no such file"))))
		g.Expect(supervisor.List()).To(BeEmpty())
	})

	t.Run("When a process is stopped, it should have gone and no failure be reported", func(t *testing.T) {
		g := NewWithT(t)
		supervisor := newSupervisor(t)
		p, err := supervisor.Start(shell("sleeper", "exec sleep 1000"))
		g.Expect(err).NotTo(HaveOccurred())
		p.Stop()
		g.Expect(p.Done()).To(BeClosed())
		g.Expect(alive(p.PID)()).To(MatchError(syscall.ESRCH))
		g.Expect(supervisor.Failed()).NotTo(Receive())
	})

	t.Run("When a process ignores SIGTERM, it should be killed after its grace", func(t *testing.T) {
		g := NewWithT(t)
		supervisor := newSupervisor(t)
		spec := shell("stubborn", `trap "" TERM; echo ready; while :; do sleep 1000; done`)
		spec.Grace = 50 * time.Millisecond
		p, err := supervisor.Start(spec)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() (string, error) {
			log, err := os.ReadFile(p.LogFile)
			return string(log), err
		}).Should(ContainSubstring("ready"))
		p.Stop()
		g.Expect(alive(p.PID)()).To(MatchError(syscall.ESRCH))
	})

	t.Run("When a process is killed, it should have no chance to clean up, and no failure be reported", func(t *testing.T) {
		g := NewWithT(t)
		supervisor := newSupervisor(t)
		p, err := supervisor.Start(shell("victim", `trap "echo cleaned up" TERM EXIT; echo ready; while :; do sleep 1000; done`))
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() (string, error) {
			log, err := os.ReadFile(p.LogFile)
			return string(log), err
		}).Should(ContainSubstring("ready"))
		p.Kill()
		g.Expect(alive(p.PID)()).To(MatchError(syscall.ESRCH))
		log, err := os.ReadFile(p.LogFile)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(log)).NotTo(ContainSubstring("cleaned up"))
		g.Expect(supervisor.Failed()).NotTo(Receive())
	})

	t.Run("When a process is frozen, it should do nothing until it is thawed", func(t *testing.T) {
		g := NewWithT(t)
		p, err := newSupervisor(t).Start(shell("frozen", "exec sleep 0.2"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.Freeze()).To(Succeed())
		g.Consistently(p.Done(), "400ms").ShouldNot(BeClosed())
		g.Expect(p.Thaw()).To(Succeed())
		g.Eventually(p.Done()).Should(BeClosed())
	})

	t.Run("When the supervisor has stopped, it should start nothing more", func(t *testing.T) {
		g := NewWithT(t)
		supervisor := newSupervisor(t)
		supervisor.Stop()
		_, err := supervisor.Start(shell("late", "true"))
		g.Expect(err).To(MatchError(ContainSubstring("the world is stopping")))
	})

	t.Run("When a process ends while it is waited for, it should end the wait", func(t *testing.T) {
		g := NewWithT(t)
		p, err := newSupervisor(t).Start(shell("early", "echo bad flag; exit 1"))
		g.Expect(err).NotTo(HaveOccurred())
		err = p.Wait(t.Context(), func(context.Context) error { return errors.New("not ready") })
		g.Expect(err).To(MatchError(ContainSubstring("bad flag")))
	})

	t.Run("When time is up, it should say what was wrong last", func(t *testing.T) {
		g := NewWithT(t)
		p, err := newSupervisor(t).Start(shell("slow", "exec sleep 1000"))
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err = p.Wait(ctx, func(context.Context) error { return errors.New("connection refused") })
		g.Expect(err).To(MatchError(SatisfyAll(ContainSubstring("waiting for slow"), ContainSubstring("connection refused"))))
	})
}

func TestParentDeath(t *testing.T) {
	if goruntime.GOOS != "linux" {
		return // only Linux has a parent-death signal
	}
	t.Run("When the world is killed, it should take its processes along", func(t *testing.T) {
		g := NewWithT(t)
		parent := exec.Command(os.Args[0])
		parent.Env = append(os.Environ(), parentEnv+"="+t.TempDir())
		stdout, err := parent.StdoutPipe()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(parent.Start()).To(Succeed())
		line, err := bufio.NewReader(stdout).ReadString('\n')
		g.Expect(err).NotTo(HaveOccurred())
		var pid int
		_, err = fmt.Sscan(strings.TrimSpace(line), &pid)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(alive(pid)()).To(Succeed())

		g.Expect(parent.Process.Kill()).To(Succeed())
		_ = parent.Wait()
		g.Eventually(func() bool {
			// An orphaned process may stay a zombie if no process reaps it: that counts as gone.
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(stat), ") Z ")
		}).Should(BeTrue())
	})
}
