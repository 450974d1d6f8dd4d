// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/karpenter/operator"
	"github.com/autonode-io/autonode/karpenter/providers/filewatch"
)

// maxKubeconfigSize is in bytes. A Secret holds less.
const maxKubeconfigSize = 2 << 20

// ErrKubeconfigChanged ends Run. The kubelet restarts the container.
var ErrKubeconfigChanged = errors.New("kubeconfig has changed; exiting to restart with the new one")

// kubeconfig watches a kubeconfig file. client-go reloads the token and certificate files that it names. The file's
// own content is part of every open connection, so the program exits when it changes: it releases the Lease, and
// another replica takes over. It is a manager.Runnable.
type kubeconfig struct {
	path    string
	content []byte
	// guest: it is --guest-kubeconfig, which may have an author other than this program's operator.
	guest bool
	// part: KUBECONFIG names further files.
	part bool
	// changed is called once.
	changed func(error)
}

// kubeconfigs reads the kubeconfig files. Call it before they are used, so that no change is missed.
func kubeconfigs(opts operator.Options, changed func(error)) ([]*kubeconfig, error) {
	paths := []string{opts.GuestKubeconfig, opts.ManagementKubeconfig}
	var fromEnv []string
	if opts.GuestKubeconfig == "" || opts.ManagementKubeconfig == "" {
		fromEnv = filepath.SplitList(os.Getenv(clientcmd.RecommendedConfigPathEnvVar))
		paths = append(paths, fromEnv...)
	}
	var files []*kubeconfig
	for i, path := range paths {
		if path == "" {
			continue
		}
		content, err := filewatch.Read(path, maxKubeconfigSize)
		if err != nil {
			return nil, fmt.Errorf("reading kubeconfig %s: %w", path, err)
		}
		if guest := i == 0; guest {
			if err := harmless(path, content); err != nil {
				return nil, fmt.Errorf("reading kubeconfig %s: %w", path, err)
			}
		}
		files = append(files,
			&kubeconfig{guest: i == 0, path: filepath.Clean(path), content: content, part: i > 1 && len(fromEnv) > 1, changed: changed})
	}
	return files, nil
}

// Start watches the file until ctx ends.
func (k *kubeconfig) Start(ctx context.Context) error {
	return filewatch.Follow(ctx, k.path, k.compare)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a standby must not start with an outdated file.
func (k *kubeconfig) NeedLeaderElection() bool { return false }

func (k *kubeconfig) compare(ctx context.Context) {
	content, err := filewatch.Read(k.path, maxKubeconfigSize)
	if err == nil && (len(content) == 0 || bytes.Equal(content, k.content)) {
		// A missing file is about to be replaced.
		return
	}
	switch {
	case err != nil:
	case k.part:
		_, err = clientcmd.LoadFromFile(k.path)
	default:
		if k.guest {
			err = harmless(k.path, content)
		}
		if err == nil {
			_, err = clientcmd.BuildConfigFromFlags("", k.path)
		}
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "kubeconfig has changed and is invalid; keeping the previous one")
		return
	}
	k.changed(fmt.Errorf("%s: %w", k.path, ErrKubeconfigChanged))
}

// harmless rejects a kubeconfig that executes a program, or names files outside its own directory, such as this
// program's token: client-go would read it and send it to the server that the kubeconfig names.
func harmless(path string, content []byte) error {
	config, err := clientcmd.Load(content)
	if err != nil {
		return errors.New("it can't be parsed") // the decoder's own words quote what it read
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return err
	}
	beside := func(file string) bool {
		if file != "" && !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		return file == "" || filepath.Dir(filepath.Clean(file)) == dir
	}
	for _, user := range config.AuthInfos {
		switch {
		case user.Exec != nil || user.AuthProvider != nil:
			return errors.New("exec and auth-provider aren't supported; name a token file beside the kubeconfig")
		case !beside(user.TokenFile) || !beside(user.ClientCertificate) || !beside(user.ClientKey):
			return fmt.Errorf("it names a file outside of %s", dir)
		}
	}
	for _, cluster := range config.Clusters {
		if !beside(cluster.CertificateAuthority) {
			return fmt.Errorf("it names a file outside of %s", dir)
		}
	}
	return nil
}
