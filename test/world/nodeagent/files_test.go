// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// tree maps the paths of a directory's files to their content; links are "-> target".
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, _ := filepath.Rel(dir, path)
		if entry.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			found[relative] = "-> " + target
			return err
		}
		content, err := os.ReadFile(path)
		found[relative] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestWriteAtomically(t *testing.T) {
	g, dir := NewWithT(t), t.TempDir()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		return string(content)
	}
	changed, err := writeAtomically(dir, map[string]file{"a": {[]byte("1"), 0o644}, "sub/b": {[]byte("2"), 0o400}}, -1)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed).To(BeTrue())
	g.Expect(read("a") + read("sub/b")).To(Equal("12"))
	first, err := os.Readlink(filepath.Join(dir, dataLink))
	g.Expect(err).NotTo(HaveOccurred())

	t.Run("When nothing differs, it should leave the files alone", func(t *testing.T) {
		changed, err := writeAtomically(dir, map[string]file{"a": {[]byte("1"), 0o644}, "sub/b": {[]byte("2"), 0o400}}, -1)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(changed).To(BeFalse())
	})
	t.Run("When content, mode or names differ, it should show exactly the new files", func(t *testing.T) {
		changed, err := writeAtomically(dir, map[string]file{"a": {[]byte("one"), 0o600}, "c": {nil, 0o644}}, -1)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(changed).To(BeTrue())
		second, err := os.Readlink(filepath.Join(dir, dataLink))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second).NotTo(Equal(first))
		g.Expect(tree(t, dir)).To(Equal(map[string]string{
			dataLink: "-> " + second, "a": "-> ..data/a", "c": "-> ..data/c", second + "/a": "one", second + "/c": "",
		}))
		info, err := os.Stat(filepath.Join(dir, "a"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	})
	for _, bad := range []string{"../x", "/x", "..x", "a/../../x"} {
		t.Run("When a name is "+bad+", it should refuse it", func(t *testing.T) {
			_, err := writeAtomically(dir, map[string]file{bad: {}}, -1)
			NewWithT(t).Expect(err).To(HaveOccurred())
		})
	}
}

func TestUnpackTar(t *testing.T) {
	type entries = []tarEntry
	for name, c := range map[string]struct {
		layers  []entries
		want    map[string]string
		wantErr string
	}{
		"When layers stack, higher ones should win": {
			layers: []entries{{{Name: "bin/a", Content: []byte("old")}, {Name: "b", Content: []byte("b")}}, {{Name: "./bin/a", Content: []byte("new")}}},
			want:   map[string]string{"bin/a": "new", "b": "b"},
		},
		"When a layer whites out a file, it should be gone": {
			layers: []entries{{{Name: "d/a"}, {Name: "d/b"}}, {{Name: "d/.wh.a"}}},
			want:   map[string]string{"d/b": ""},
		},
		"When a directory is opaque, only what its own layer made should be there": {
			layers: []entries{{{Name: "d/a"}, {Name: "e"}}, {{Name: "d/new"}, {Name: "d/.wh..wh..opq"}}},
			want:   map[string]string{"d/new": "", "e": ""},
		},
		"When there are links, they should be made inside": {
			layers: []entries{{{Name: "a", Content: []byte("x")}, {Name: "hard", Type: tar.TypeLink, Linkname: "/a"}, {Name: "soft", Type: tar.TypeSymlink, Linkname: "a"}}},
			want:   map[string]string{"a": "x", "hard": "x", "soft": "-> a"},
		},
		"When a file replaces a directory, the directory should be gone": {
			layers: []entries{{{Name: "a/b"}}, {{Name: "a", Content: []byte("file")}}},
			want:   map[string]string{"a": "file"},
		},
		"When a name is absolute, it should lie inside": {
			layers: []entries{{{Name: "/etc/x", Content: []byte("x")}}}, want: map[string]string{"etc/x": "x"},
		},
		"When a name climbs out, it should be refused": {
			layers: []entries{{{Name: "a/../../evil"}}}, wantErr: "leaves the image's root directory",
		},
		"When a hard link climbs out, it should be refused": {
			layers: []entries{{{Name: "a", Type: tar.TypeLink, Linkname: "../../etc/passwd"}}}, wantErr: "leaves the image's root directory",
		},
		"When a file goes through a link that leads out, it should be refused": {
			layers: []entries{{{Name: "a", Type: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "a/evil", Content: []byte("x")}}}, wantErr: "a/evil",
		},
		"When a whiteout goes through a link that leads out, it should be refused": {
			layers: []entries{{{Name: "a", Type: tar.TypeSymlink, Linkname: "../.."}, {Name: "a/.wh.b"}}}, wantErr: "a/.wh.b",
		},
		"When the image is larger than allowed, it should be refused": {
			layers: []entries{{{Name: "a", Content: bytes.Repeat([]byte("x"), 2000)}}}, wantErr: "larger than",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, dir := NewWithT(t), t.TempDir()
			budget := int64(1000)
			var err error
			for _, layer := range c.layers {
				content, tarErr := tarOf(layer...)
				g.Expect(tarErr).NotTo(HaveOccurred())
				err = errors.Join(err, unpackTar(dir, bytes.NewReader(content), &budget))
			}
			if c.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(c.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			if diff := cmp.Diff(c.want, tree(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	repository, err := name.NewRepository("127.0.0.1:5000/autonode/operator", name.WeakValidation)
	if err != nil {
		t.Fatal(err)
	}
	config := func(registry string) *corev1.Secret {
		return &corev1.Secret{Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"` + registry + `":{"auth":"dTpwOnE="}}}`)}}
	}
	for registry, want := range map[string]bool{
		"127.0.0.1:5000": true, "http://127.0.0.1:5000/v2/": true, "127.0.0.1:5000/autonode": true, "127.0.0.1:5000/autonode/operator": true,
		"127.0.*.1:5000": true, "127.0.0.1": false, "127.0.0.1:5000/other": false, "127.0.0.1:5000/auto": false, "*": false, "docker.io": false,
	} {
		t.Run(fmt.Sprintf("When a secret is for %s, it should serve: %t", registry, want), func(t *testing.T) {
			g := NewWithT(t)
			found := credentialsFor(repository, []*corev1.Secret{{Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("not JSON")}}, config(registry)})
			g.Expect(found).To(HaveLen(1))
			auth, err := found[0].Authorization()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(auth.Username == "u" && auth.Password == "p:q").To(Equal(want))
		})
	}
}

func TestContainerUser(t *testing.T) {
	rootfs := t.TempDir()
	if err := os.MkdirAll(filepath.Join(rootfs, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rootfs, "etc", "passwd"), []byte("root:x:0:0::/:\nweb:x:33:34::/:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		image   string
		pod     corev1.PodSecurityContext
		own     corev1.SecurityContext
		want    credential
		wantErr string
	}{
		"When nobody says, it should be root":                       {},
		"When the image names a number, it should be that":          {image: "65532", want: credential{uid: 65532, gid: 65532}},
		"When the image names a group too, it should be that":       {image: "65532:7", want: credential{uid: 65532, gid: 7}},
		"When the image names a user, it should be looked up":       {image: "web", want: credential{uid: 33, gid: 34}},
		"When the image says nonroot, it should be nobody":          {image: "nonroot:nonroot", want: credential{uid: 65532, gid: 65532}},
		"When the image names nobody known, it should say so":       {image: "ghost", wantErr: "unable to find user ghost"},
		"When the pod says, it should win over the image":           {image: "1", pod: corev1.PodSecurityContext{RunAsUser: ptr.To[int64](2), RunAsGroup: ptr.To[int64](3)}, want: credential{uid: 2, gid: 3}},
		"When the container says, it should win over the pod":       {pod: corev1.PodSecurityContext{RunAsUser: ptr.To[int64](2)}, own: corev1.SecurityContext{RunAsUser: ptr.To[int64](4)}, want: credential{uid: 4, gid: 4}},
		"When groups are given, it should have them":                {pod: corev1.PodSecurityContext{RunAsUser: ptr.To[int64](2), FSGroup: ptr.To[int64](8), SupplementalGroups: []int64{9}}, want: credential{uid: 2, gid: 2, groups: []int64{9, 8}}},
		"When root is forbidden and the image is root, it fails":    {pod: corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}, wantErr: "image will run as root"},
		"When root is forbidden and the image has a name, it fails": {image: "web", own: corev1.SecurityContext{RunAsNonRoot: ptr.To(true)}, wantErr: "non-numeric user (web)"},
		"When root is forbidden and the image isn't, it should run": {image: "65532", own: corev1.SecurityContext{RunAsNonRoot: ptr.To(true)}, want: credential{uid: 65532, gid: 65532}},
	} {
		t.Run(name, func(t *testing.T) {
			img := &image{rootfs: rootfs}
			img.config.Config.User = c.image
			got, err := containerUser(&corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &c.pod}}, &corev1.Container{SecurityContext: &c.own}, img)
			if c.wantErr != "" {
				NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.wantErr)))
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(credential{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReachable(t *testing.T) {
	dir := filepath.Join(buildDir, "reach")
	inner := filepath.Join(dir, "inner")
	if err := errors.Join(os.MkdirAll(inner, 0o755), os.Chmod(inner, 0o755)); err != nil {
		t.Fatal(err)
	}
	own := credential{uid: int64(os.Geteuid()), gid: int64(os.Getegid())}
	stranger, member := credential{uid: 4_000_000, gid: 4_000_000}, credential{uid: 4_000_000, gid: 4_000_000, groups: []int64{own.gid}}
	for name, c := range map[string]struct {
		mode os.FileMode
		user credential
		want bool
	}{
		"When everybody may enter, a stranger should":             {0o755, stranger, true},
		"When everybody may pass but not look, a stranger should": {0o711, stranger, true},
		"When only the group may enter, a stranger shouldn't":     {0o750, stranger, false},
		"When only the group may enter, a member should":          {0o750, member, true},
		"When only the owner may enter, the owner should":         {0o700, own, true},
		"When only the owner may enter, a member shouldn't":       {0o700, member, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.Chmod(dir, c.mode); err != nil {
				t.Fatal(err)
			}
			if got := reachable(inner, c.user); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
	t.Run("When there is no such directory, nobody should reach it", func(t *testing.T) {
		if reachable(filepath.Join(dir, "none"), own) {
			t.Error("got true")
		}
	})
}

func TestTokens(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var failing error
	requests := 0
	client := fake.NewClientset()
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if failing != nil {
			return true, nil, failing
		}
		requests++
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		request.Status = authenticationv1.TokenRequestStatus{
			Token:               fmt.Sprintf("%s-%d", request.Spec.BoundObjectRef.UID, requests),
			ExpirationTimestamp: metav1.NewTime(now.Add(time.Duration(*request.Spec.ExpirationSeconds) * time.Second)),
		}
		return true, request, nil
	})
	tokens := &tokens{client: client, now: func() time.Time { return now }}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "uid"}}
	projection := &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To[int64](1000)}
	get := func(t *testing.T) token {
		t.Helper()
		got, err := tokens.get(t.Context(), pod, projection)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	t.Run("When a token is fresh, it should be kept until 80% of its life", func(t *testing.T) {
		g := NewWithT(t)
		first := get(t)
		g.Expect(first.value).To(Equal("uid-1"))
		g.Expect(first.renew).To(Equal(now.Add(800 * time.Second)))
		now = now.Add(799 * time.Second)
		g.Expect(get(t).value).To(Equal("uid-1"))
		now = now.Add(time.Second)
		g.Expect(get(t).value).To(Equal("uid-2"))
	})
	t.Run("When a renewal fails, the old token should serve until it expires", func(t *testing.T) {
		g := NewWithT(t)
		failing = errors.New("no answer")
		now = now.Add(900 * time.Second)
		old := get(t)
		g.Expect(old.value).To(Equal("uid-2"))
		g.Expect(old.renew).To(Equal(now.Add(10 * time.Second)))
		now = now.Add(100 * time.Second)
		_, err := tokens.get(t.Context(), pod, projection)
		g.Expect(err).To(MatchError(ContainSubstring("no answer")))
	})
	t.Run("When a token lives long, it should be renewed daily", func(t *testing.T) {
		NewWithT(t).Expect(renewAt(now, now.AddDate(1, 0, 0))).To(Equal(now.Add(24 * time.Hour)))
	})
}

func TestLines(t *testing.T) {
	for content, wants := range map[string][]string{
		"a\nb\nc\n": {"", "c\n", "b\nc\n", "a\nb\nc\n", "a\nb\nc\n"},
		"a\nb\nc":   {"", "c", "b\nc", "a\nb\nc", "a\nb\nc"},
		"":          {"", ""},
	} {
		for lines, want := range wants {
			t.Run(fmt.Sprintf("When %d lines of %q are wanted, it should begin at %q", lines, content, want), func(t *testing.T) {
				reader := strings.NewReader(content)
				if err := seekLines(reader, lines); err != nil {
					t.Fatal(err)
				}
				rest := make([]byte, reader.Len())
				_, _ = reader.Read(rest)
				if string(rest) != want {
					t.Errorf("got %q", rest)
				}
			})
		}
	}
}
