// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// tokenMode is that of service-account tokens.
const tokenMode = os.FileMode(0o600)

// volumes makes and refreshes the volumes of one pod.
type volumes struct {
	dir     string
	objects *objects
	tokens  *tokens
	// written is each volume's content.
	written map[string]map[string]file
}

func (v *volumes) path(name string) string { return filepath.Join(v.dir, name) }

// mount makes every volume of the pod, or brings it up to date. It returns when a token must be renewed, the zero time
// if none. An error names the volume and doesn't hold up the others.
func (v *volumes) mount(ctx context.Context, pod *corev1.Pod) (renew time.Time, err error) {
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		again, mountErr := v.mountOne(ctx, pod, volume)
		if mountErr != nil && err == nil {
			err = fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", volume.Name, mountErr)
		}
		if !again.IsZero() && (renew.IsZero() || again.Before(renew)) {
			renew = again
		}
	}
	return renew, err
}

func (v *volumes) mountOne(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (renew time.Time, err error) {
	dir, files := v.path(volume.Name), map[string]file{}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return renew, fmt.Errorf("making the volume's directory: %w", err)
	}
	switch source := volume.VolumeSource; {
	case source.EmptyDir != nil:
		return renew, nil
	case source.Secret != nil:
		err = v.project(ctx, files, secrets, source.Secret.SecretName, source.Secret.Items, source.Secret.Optional, source.Secret.DefaultMode)
	case source.ConfigMap != nil:
		err = v.project(ctx, files, configMaps, source.ConfigMap.Name, source.ConfigMap.Items, source.ConfigMap.Optional, source.ConfigMap.DefaultMode)
	case source.Projected != nil:
		renew, err = v.projected(ctx, pod, files, source.Projected)
	}
	if err != nil || maps.EqualFunc(files, v.written[volume.Name], same) && v.written[volume.Name] != nil {
		return renew, err
	}
	if err := writeAtomically(dir, files); err != nil {
		return renew, err
	}
	v.written[volume.Name] = files
	return renew, nil
}

func same(a, b file) bool { return a.mode == b.mode && bytes.Equal(a.content, b.content) }

// project adds the keys of a Secret or a ConfigMap as files: all of them, or those that items name.
func (v *volumes) project(
	ctx context.Context, files map[string]file, resource, name string, items []corev1.KeyToPath, optional *bool, defaultMode *int32,
) error {
	data, err := v.objects.data(ctx, resource, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(items) == 0 {
		for key, value := range data {
			files[key] = file{value, fileMode(nil, defaultMode)}
		}
		return nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			if ptr.Deref(optional, false) {
				continue
			}
			return fmt.Errorf("references non-existent key: %s", item.Key)
		}
		files[filepath.Clean(item.Path)] = file{value, fileMode(item.Mode, defaultMode)}
	}
	return nil
}

func fileMode(mode, defaultMode *int32) os.FileMode {
	if mode == nil {
		mode = defaultMode
	}
	return os.FileMode(ptr.Deref(mode, 0o644)).Perm()
}

func (v *volumes) projected(ctx context.Context, pod *corev1.Pod, files map[string]file, projected *corev1.ProjectedVolumeSource) (renew time.Time, err error) {
	for i := range projected.Sources {
		switch source := &projected.Sources[i]; {
		case source.Secret != nil:
			err = v.project(ctx, files, secrets, source.Secret.Name, source.Secret.Items, source.Secret.Optional, projected.DefaultMode)
		case source.ConfigMap != nil:
			err = v.project(ctx, files, configMaps, source.ConfigMap.Name, source.ConfigMap.Items, source.ConfigMap.Optional, projected.DefaultMode)
		case source.DownwardAPI != nil:
			for _, item := range source.DownwardAPI.Items {
				value, _ := podField(pod, item.FieldRef.FieldPath)
				files[filepath.Clean(item.Path)] = file{[]byte(value), fileMode(item.Mode, projected.DefaultMode)}
			}
		case source.ServiceAccountToken != nil:
			var token token
			if token, err = v.tokens.get(ctx, pod, source.ServiceAccountToken); err == nil {
				files[filepath.Clean(source.ServiceAccountToken.Path)] = file{[]byte(token.value), tokenMode}
				if renew.IsZero() || token.renew.Before(renew) {
					renew = token.renew
				}
			}
		}
		if err != nil {
			return renew, err
		}
	}
	return renew, nil
}

// mountsOf returns the paths of a container's mounts on this machine.
func (v *volumes) mountsOf(container *corev1.Container) []mount {
	mounts := make([]mount, 0, len(container.VolumeMounts))
	for _, wanted := range container.VolumeMounts {
		mounts = append(mounts, mount{
			containerPath: "/" + strings.Trim(filepath.Clean(wanted.MountPath), "/"), hostPath: v.path(wanted.Name),
		})
	}
	return mounts
}
