// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// containerUser says which user a container asks to run as: the pod's wish, else the image's, else root. An error is
// the kubelet's refusal of a container that must not run as root.
func containerUser(pod *corev1.Pod, container *corev1.Container, img *image) (credential, error) {
	podContext, own := ptr.Deref(pod.Spec.SecurityContext, corev1.PodSecurityContext{}), ptr.Deref(container.SecurityContext, corev1.SecurityContext{})
	user, numeric, err := imageUser(img)
	wish := own.RunAsUser
	if wish == nil {
		wish = podContext.RunAsUser
	}
	if wish != nil {
		user.uid, numeric, err = *wish, true, nil
	}
	if err != nil {
		return credential{}, err
	}
	if group := firstSet(own.RunAsGroup, podContext.RunAsGroup); group != nil {
		user.gid = *group
	}
	if user.gid == 0 {
		user.gid = user.uid // containers default to group 0, which on a whole machine opens more than it should
	}
	user.groups = slices.Clone(podContext.SupplementalGroups)
	if podContext.FSGroup != nil {
		user.groups = append(user.groups, *podContext.FSGroup)
	}
	if ptr.Deref(firstSet(own.RunAsNonRoot, podContext.RunAsNonRoot), false) {
		if !numeric {
			return credential{}, fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", img.config.Config.User)
		}
		if user.uid == 0 {
			return credential{}, fmt.Errorf("container has runAsNonRoot and image will run as root")
		}
	}
	return user, nil
}

func firstSet[T any](values ...*T) *T {
	for _, value := range values {
		if value != nil {
			return value
		}
	}
	return nil
}

// nobody is the user of distroless images, which "nonroot" names by convention.
const nobody = 65532

// imageUser reads "user" or "user:group" of the image's configuration; names are looked up in the image's /etc/passwd.
func imageUser(img *image) (user credential, numeric bool, err error) {
	name, group, hasGroup := strings.Cut(img.config.Config.User, ":")
	if name == "" {
		return credential{}, true, nil
	}
	if uid, err := strconv.ParseInt(name, 10, 32); err == nil {
		user.uid, numeric = uid, true
	} else if uid, gid, ok := lookUp(filepath.Join(img.rootfs, "etc", "passwd"), name); ok {
		user.uid, user.gid = uid, gid
	} else if name == "nonroot" {
		user.uid, user.gid = nobody, nobody
	} else if name != "root" {
		return credential{}, false, fmt.Errorf("unable to find user %s: no matching entries in passwd file", name)
	}
	if !hasGroup {
		return user, numeric, nil
	}
	if gid, err := strconv.ParseInt(group, 10, 32); err == nil {
		user.gid = gid
	} else if gid, _, ok := lookUp(filepath.Join(img.rootfs, "etc", "group"), group); ok {
		user.gid = gid
	} else if group == "nonroot" {
		user.gid = nobody
	} else if group != "root" {
		return credential{}, false, fmt.Errorf("unable to find group %s: no matching entries in group file", group)
	}
	return user, numeric, nil
}

// lookUp finds a name in a passwd or group file: name:password:first:second.
func lookUp(file, name string) (first, second int64, ok bool) {
	in, err := os.Open(file)
	if err != nil {
		return 0, 0, false
	}
	defer in.Close()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 4 || fields[0] != name {
			continue
		}
		first, err := strconv.ParseInt(fields[2], 10, 32)
		if err != nil {
			return 0, 0, false
		}
		second, _ := strconv.ParseInt(fields[3], 10, 32) // a group's members aren't a number, and aren't asked for
		return first, second, true
	}
	return 0, 0, false
}

// systemCredential is nil for the agent's own user.
func systemCredential(user *credential) *syscall.Credential {
	if user == nil {
		return nil
	}
	groups := make([]uint32, len(user.groups))
	for i, group := range user.groups {
		groups[i] = uint32(group)
	}
	return &syscall.Credential{Uid: uint32(user.uid), Gid: uint32(user.gid), Groups: groups}
}

// reachable tells whether a user may enter a directory and everything above it.
func reachable(dir string, user credential) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil {
			return false
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return false
		}
		need := os.FileMode(0o001)
		switch {
		case user.uid == 0:
			need = 0
		case int64(owner.Uid) == user.uid:
			need = 0o100
		case int64(owner.Gid) == user.gid || slices.Contains(user.groups, int64(owner.Gid)):
			need = 0o010
		}
		if info.Mode().Perm()&need != need {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}
