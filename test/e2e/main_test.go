// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	localworld "github.com/autonode-io/autonode/test/world"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/progress"
)

// The guests. Tests share them one after the other, and leave each as they found it, but for the version of its control plane.
const (
	blue   = "blue"
	green  = "green"
	red    = "red"
	amber  = "amber"
	violet = "violet"
	indigo = "indigo"
)

// The payloads that the world has in its registry, by the Kubernetes version they give to nodes.
const (
	initialRelease   = localworld.InitialRelease
	upgradedRelease  = localworld.UpgradedRelease
	nextMinorRelease = localworld.NextMinorRelease
)

// world is shared by all tests but those that need one of their own. It starts with the first test that acquires a cluster of it.
var (
	world       *localworld.World
	removeWorld func(failed bool)
	errWorld    error
	worldOnce   sync.Once
)

// sharedWorld starts the world, or waits until it has started.
func sharedWorld(t *testing.T) *localworld.World {
	t.Helper()
	worldOnce.Do(func() {
		world, removeWorld, errWorld = startWorld(interrupted, os.Stdout, localworld.Config{
			Guests: []string{blue, green, red, amber, violet, indigo}, NextMinor: true,
		})
	})
	if errWorld != nil {
		t.Fatalf("starting the world: %v", errWorld)
	}
	return world
}

// interrupted ends when the tests are interrupted, of which the testing package doesn't know: worlds have to be stopped all the same.
var interrupted context.Context

// started are all worlds, stopped ones too.
var started struct {
	sync.Mutex
	worlds []*localworld.World
}

// stopWorlds stops those that still run.
func stopWorlds() {
	started.Lock()
	defer started.Unlock()
	for _, world := range started.worlds {
		if err := world.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the world:", err)
		}
	}
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	if err := redirectLogs(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if code == 0 {
			_ = os.Remove(logFile)
		} else {
			fmt.Fprintln(os.Stderr, "the libraries' logs, of all worlds, are in", logFile)
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	interrupted = ctx
	defer context.AfterFunc(ctx, func() {
		stopWorlds()
		os.Exit(1)
	})()
	code = m.Run()
	if world == nil {
		return code
	}
	if code == 0 {
		code = afterwards(ctx, os.Stdout)
	}
	if err := world.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the world:", err)
		code = 1
	}
	removeWorld(code != 0)
	return code
}

// allTests reports whether no test is left out.
func allTests() bool {
	return flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == ""
}

// check is about all tests. It returns what is wrong.
type check struct {
	name     string
	findings func(context.Context, *localworld.World) ([]string, error)
}

// afterwards checks what all tests together have to prove, in a world that they have left alone.
func afterwards(ctx context.Context, output io.Writer) (code int) {
	ctx, cancel := context.WithTimeout(ctx, eventually)
	defer cancel()
	checks := []check{
		{"When tests have run, no credential should be in a log or an object that isn't there to hold it", checkLeaks},
		{"When some tests have run, nothing should have been denied", checkRefusals},
		{"When tests have run, no program should log the same more than once a second", checkRepetition},
	}
	if allTests() {
		checks[1] = check{"When all tests have run, every permission should have been used, and nothing denied", checkPermissions}
	}
	for _, c := range checks {
		began := time.Now()
		findings, err := c.findings(ctx, world)
		if err != nil {
			findings = append(findings, err.Error())
		}
		outcome := "PASS"
		if len(findings) > 0 {
			outcome, code = "FAIL", 1
		}
		fmt.Fprintf(output, "--- %s: %s (%.2fs)\n", outcome, c.name, time.Since(began).Seconds())
		for _, finding := range findings {
			fmt.Fprintln(output, "   ", finding)
		}
	}
	return code
}

// leavesNoTrace checks at a test's end, in its own world, what afterwards checks in that of the others.
func (c *cluster) leavesNoTrace(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			c.expectNoTrace(t)
		}
	})
}

// expectNoTrace expects no credential where none belongs, no denied request and no log that repeats itself. AutoNode has to be on: an
// API server that starts may deny only what a role grants.
func (c *cluster) expectNoTrace(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), context.WithoutCancel(t.Context())
	for what, check := range map[string]func(context.Context, *localworld.World) ([]string, error){
		"credentials in a log or an object that isn't there to hold them": checkLeaks,
		"what was denied":                 checkRefusals,
		"what was logged again and again": checkRepetition,
	} {
		findings, err := check(ctx, c.world)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(findings).To(BeEmpty(), what)
	}
}

// startWorld starts a world in a folder of its own. remove is for after its end: it keeps the logs of tests that failed, and reports
// where they are.
func startWorld(ctx context.Context, output io.Writer, config localworld.Config) (w *localworld.World, remove func(failed bool), err error) {
	dir, err := os.MkdirTemp("", "autonode-e2e-")
	if err != nil {
		return nil, nil, fmt.Errorf("making a folder for the world: %w", err)
	}
	// The pods' users have to reach what the node agent unpacks for them.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("opening the world's folder to its pods: %w", err)
	}
	remove = func(failed bool) {
		if failed {
			fmt.Fprintln(os.Stderr, "the world's logs are in", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, "removing the world's folder:", err)
		}
	}
	startMutex.Lock()
	config.Dir, config.Audit, config.Progress = dir, true, progress.New(output)
	w, err = localworld.Start(ctx, config)
	startMutex.Unlock()
	if err != nil {
		return nil, nil, fmt.Errorf("%w (its logs are in %s)", err, dir)
	}
	started.Lock()
	defer started.Unlock()
	started.worlds = append(started.worlds, w)
	ctx, forget := context.WithCancel(ctx)
	if err := rememberSecrets(ctx, w); err != nil {
		forget()
		return nil, nil, err
	}
	removeFolder := remove
	draw := recordBoards(ctx, w, len(started.worlds))
	return w, func(failed bool) {
		forget()
		if err := draw(output); err != nil {
			fmt.Fprintln(os.Stderr, "drawing the dashboards:", err)
		}
		removeFolder(failed)
	}, nil
}

// startMutex lets one world start at a time: API servers that take too long to start end themselves.
var startMutex sync.Mutex

// ownWorld starts a world for one test, and returns its guests. If the test fails, it describes them before the world ends.
func ownWorld(t *testing.T, guests ...string) []*cluster {
	t.Helper()
	clusterPool.borrow(t, len(guests)+1) // and the management cluster
	own := startOwnWorld(t, localworld.Config{Guests: guests})
	clusters := make([]*cluster, len(guests))
	for i, guest := range guests {
		clusters[i] = newCluster(t, own, guest)
	}
	t.Cleanup(func() {
		for _, c := range clusters {
			if t.Failed() {
				c.describe(t)
			}
		}
	})
	return clusters
}

// startOwnWorld starts a world that ends with the test, which has reserved all of its clusters.
func startOwnWorld(t *testing.T, config localworld.Config) *localworld.World {
	t.Helper()
	own, remove, err := startWorld(t.Context(), os.Stdout, config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		NewWithT(t).Expect(own.Stop()).To(Succeed())
		remove(t.Failed())
	})
	return own
}

// logFile has the logs of libraries, which are the process's and not a world's.
var logFile string

func redirectLogs() error {
	file, err := os.CreateTemp("", "autonode-e2e-*.log")
	if err != nil {
		return fmt.Errorf("opening the libraries' log: %w", err)
	}
	logFile = file.Name()
	localworld.RedirectLogs(file)
	return nil
}

func newClient(config *rest.Config) (client.WithWatch, error) {
	return localworld.NewClient(config, apiextensionsv1.AddToScheme, bootstrapv1.AddToScheme, infrav1.AddToScheme, autonodev1alpha1.AddToScheme,
		func(scheme *runtime.Scheme) error {
			overlays := schema.GroupVersion{Group: karpenterGroupVersion.Group, Version: "v1alpha1"}
			scheme.AddKnownTypes(overlays, &karpv1alpha1.NodeOverlay{}, &karpv1alpha1.NodeOverlayList{})
			metav1.AddToGroupVersion(scheme, overlays)
			buffers := schema.GroupVersion{Group: "autoscaling.x-k8s.io", Version: "v1beta1"}
			scheme.AddKnownTypes(buffers, &autoscalingv1beta1.CapacityBuffer{}, &autoscalingv1beta1.CapacityBufferList{})
			metav1.AddToGroupVersion(scheme, buffers)
			return nil
		})
}
