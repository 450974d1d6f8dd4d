// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// volumes makes and refreshes the volumes of one pod.
type volumes struct {
	dir         string
	objects     reader
	tokens      *tokens
	allocatable corev1.ResourceList

	// owner is the user that the files are for; -1 while no container has said, and when the agent can't give files away.
	owner int
	// shared is set once containers of different users need the files.
	shared bool
}

func (v *volumes) path(name string) string { return filepath.Join(v.dir, name) }

// mount makes every volume of the pod, or brings it up to date. It returns when a token must be renewed, the zero time
// if none. An error names the volume; others aren't held up by it when they exist already.
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
	if volume.HostPath != nil {
		return renew, mountHostPath(volume.HostPath)
	}
	dir := v.path(volume.Name)
	if err := v.makeDir(dir); err != nil {
		return renew, err
	}
	files := map[string]file{}
	switch {
	case volume.EmptyDir != nil:
		return renew, nil
	case volume.Secret != nil:
		source := volume.Secret
		err = v.secret(ctx, pod, files, source.SecretName, source.Items, source.Optional, source.DefaultMode)
	case volume.ConfigMap != nil:
		source := volume.ConfigMap
		err = v.configMap(ctx, pod, files, source.Name, source.Items, source.Optional, source.DefaultMode)
	case volume.DownwardAPI != nil:
		err = v.downwardAPI(pod, files, volume.DownwardAPI.Items, volume.DownwardAPI.DefaultMode)
	case volume.Projected != nil:
		renew, err = v.projected(ctx, pod, files, volume.Projected)
	default:
		err = fmt.Errorf("the node agent doesn't know this kind of volume")
	}
	if err != nil {
		return renew, err
	}
	_, err = writeAtomically(dir, files, v.owner)
	return renew, err
}

// makeDir makes a volume's directory. Where one user owns the pod's files, nobody else may look at them; where several
// do, who knows a file's name gets as far as its own mode.
func (v *volumes) makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the volume's directory: %w", err)
	}
	if v.shared {
		return openUp(dir)
	}
	return chownAll(dir, v.owner)
}

// grant makes the volumes accessible to the user that a container is about to run as. Only root can, and need.
func (v *volumes) grant(uid int64) error {
	if os.Geteuid() != 0 || v.shared || v.owner == int(uid) {
		return nil
	}
	v.shared = v.owner >= 0
	dirs, err := os.ReadDir(v.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("listing the volumes: %w", err)
	}
	v.owner = int(uid)
	for _, dir := range dirs {
		if err := chownAll(v.path(dir.Name()), v.owner); err != nil {
			return fmt.Errorf("giving volume %q to user %d: %w", dir.Name(), uid, err)
		}
		if v.shared {
			if err := openUp(v.path(dir.Name())); err != nil {
				return fmt.Errorf("opening volume %q to several users: %w", dir.Name(), err)
			}
		}
	}
	return nil
}

// openUp lets every user pass a volume's directory, and write to it as in any emptyDir.
func openUp(dir string) error { return os.Chmod(dir, 0o777) }

func mountHostPath(source *corev1.HostPathVolumeSource) error {
	switch ptr.Deref(source.Type, corev1.HostPathUnset) {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		return os.MkdirAll(source.Path, 0o755)
	case corev1.HostPathFileOrCreate:
		made, err := os.OpenFile(source.Path, os.O_CREATE|os.O_RDONLY, 0o644)
		if err != nil {
			return err
		}
		return made.Close()
	default:
		if _, err := os.Stat(source.Path); err != nil {
			return fmt.Errorf("hostPath type check failed: %w", err)
		}
		return nil
	}
}

func (v *volumes) secret(ctx context.Context, pod *corev1.Pod, files map[string]file, name string, items []corev1.KeyToPath, optional *bool, defaultMode *int32) error {
	secret, err := v.objects.secret(ctx, pod.Namespace, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil
	}
	if err != nil {
		return err
	}
	return project(files, secret.Data, items, optional, defaultMode)
}

func (v *volumes) configMap(ctx context.Context, pod *corev1.Pod, files map[string]file, name string, items []corev1.KeyToPath, optional *bool, defaultMode *int32) error {
	configMap, err := v.objects.configMap(ctx, pod.Namespace, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil
	}
	if err != nil {
		return err
	}
	data := make(map[string][]byte, len(configMap.Data)+len(configMap.BinaryData))
	for key, value := range configMap.Data {
		data[key] = []byte(value)
	}
	for key, value := range configMap.BinaryData {
		data[key] = value
	}
	return project(files, data, items, optional, defaultMode)
}

// project adds keys as files: all of them, or those that items name.
func project(files map[string]file, data map[string][]byte, items []corev1.KeyToPath, optional *bool, defaultMode *int32) error {
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

func (v *volumes) downwardAPI(pod *corev1.Pod, files map[string]file, items []corev1.DownwardAPIVolumeFile, defaultMode *int32) error {
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = podField(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			container := containerNamed(pod, item.ResourceFieldRef.ContainerName)
			if container == nil {
				return fmt.Errorf("resourceFieldRef names container %q, which the pod doesn't have", item.ResourceFieldRef.ContainerName)
			}
			value, err = resourceField(pod, container, v.allocatable, item.ResourceFieldRef)
		}
		if err != nil {
			return err
		}
		files[filepath.Clean(item.Path)] = file{[]byte(value), fileMode(item.Mode, defaultMode)}
	}
	return nil
}

func (v *volumes) projected(ctx context.Context, pod *corev1.Pod, files map[string]file, projected *corev1.ProjectedVolumeSource) (renew time.Time, err error) {
	for i := range projected.Sources {
		source := &projected.Sources[i]
		switch {
		case source.Secret != nil:
			err = v.secret(ctx, pod, files, source.Secret.Name, source.Secret.Items, source.Secret.Optional, projected.DefaultMode)
		case source.ConfigMap != nil:
			err = v.configMap(ctx, pod, files, source.ConfigMap.Name, source.ConfigMap.Items, source.ConfigMap.Optional, projected.DefaultMode)
		case source.DownwardAPI != nil:
			err = v.downwardAPI(pod, files, source.DownwardAPI.Items, projected.DefaultMode)
		case source.ServiceAccountToken != nil:
			var token token
			if token, err = v.tokens.get(ctx, pod, source.ServiceAccountToken); err == nil {
				mode := os.FileMode(0o600)
				if v.shared {
					mode = fileMode(nil, projected.DefaultMode)
				}
				files[filepath.Clean(source.ServiceAccountToken.Path)] = file{[]byte(token.value), mode}
				if renew.IsZero() || token.renew.Before(renew) {
					renew = token.renew
				}
			}
		default:
			err = fmt.Errorf("the node agent doesn't know this kind of projected source")
		}
		if err != nil {
			return renew, err
		}
	}
	return renew, nil
}

// mountsOf says where a container's mounts lie on this machine.
func (v *volumes) mountsOf(pod *corev1.Pod, container *corev1.Container, env map[string]string) ([]mount, error) {
	byName := map[string]*corev1.Volume{}
	for i := range pod.Spec.Volumes {
		byName[pod.Spec.Volumes[i].Name] = &pod.Spec.Volumes[i]
	}
	mounts := make([]mount, 0, len(container.VolumeMounts))
	for _, wanted := range container.VolumeMounts {
		volume, ok := byName[wanted.Name]
		if !ok {
			return nil, fmt.Errorf("volumeMount %q names no volume of the pod", wanted.Name)
		}
		at := v.path(wanted.Name)
		if volume.HostPath != nil {
			at = volume.HostPath.Path
		}
		sub := wanted.SubPath
		if wanted.SubPathExpr != "" {
			sub = expand(wanted.SubPathExpr, env)
		}
		if sub != "" {
			if !filepath.IsLocal(sub) {
				return nil, fmt.Errorf("subPath %q leaves volume %q", sub, wanted.Name)
			}
			at = filepath.Join(at, sub)
			if volume.EmptyDir != nil {
				if err := v.makeDir(at); err != nil {
					return nil, err
				}
			}
		}
		mounts = append(mounts, mount{containerPath: "/" + strings.Trim(filepath.Clean(wanted.MountPath), "/"), hostPath: at})
	}
	return mounts, nil
}
