// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/internal/apiserver"
)

// upstream are modules of other projects with the definitions of what the documentation shows. Each is downloaded as it was seen once.
var upstream = []struct {
	module, sum string
	files       []string
}{
	{"sigs.k8s.io/cluster-api-provider-aws/v2@v2.13.0", "h1:yQz7GBrIkPLuEJ5MXNuZ/6eUssTJK8reUnZ6t5QIPnU=", []string{
		"config/crd/bases/infrastructure.cluster.x-k8s.io_awsclusters.yaml",
		"config/crd/bases/infrastructure.cluster.x-k8s.io_awsmachinetemplates.yaml",
	}},
	{"sigs.k8s.io/cluster-api-operator@v0.29.0", "h1:i8j3auZqWlbiTiMnHqzyFlppHAfzZuqYYlBLDD3cNe4=", []string{
		"config/crd/bases/operator.cluster.x-k8s.io_addonproviders.yaml",
	}},
	{"github.com/aws/karpenter-provider-aws@v1.14.1", "h1:WGtIQTQcxpElYMdWfWuPwaF2+9muR+hYhPZsTtoY8Gs=", []string{
		"pkg/apis/crds/karpenter.k8s.aws_ec2nodeclasses.yaml",
	}},
}

// schemas are CustomResourceDefinitions with the names and types of fields of providers whose modules the proxy doesn't have. Each names
// its source. Only the objects that the documentation shows, and those within them, have their fields there: to show a field of another one,
// add what the source has.
const schemas = "schemas"

// cluster is a real API server with every kind that the documentation shows, and without controllers.
var cluster struct {
	// admin rejects fields that a kind doesn't have.
	admin client.Client
	// kubectl is its path, and kubeconfig a file whose contexts all mean this API server.
	kubectl, kubeconfig string
	// programs are the repository's own, by name.
	programs map[string]string
}

// programs that the documentation shows, each with its module's folder.
var programs = map[string]string{"autonode": root, "autonode-dev": root + "/test", "autonode-operator": root, "karpenter-clusterapi": root}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "preparing to test the documentation:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "docs")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := buildPrograms(dir); err != nil {
		return 0, err
	}
	definitions, err := crds.Embedded()
	if err != nil {
		return 0, err
	}
	gated, err := crds.Gated()
	if err != nil {
		return 0, err
	}
	folders, err := definitionFolders()
	if err != nil {
		return 0, err
	}
	environment := apiserver.New(envtest.CRDInstallOptions{CRDs: slices.Concat(definitions, gated), Paths: folders, ErrorIfPathMissing: true})
	config, err := environment.Start()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, environment.Stop()) }()
	config.QPS = -1
	admin, err := client.New(config, client.Options{})
	if err != nil {
		return 0, err
	}
	cluster.admin = client.WithFieldValidation(admin, metav1.FieldValidationStrict)
	user, err := environment.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return 0, err
	}
	raw, err := user.KubeConfig()
	if err != nil {
		return 0, err
	}
	cluster.kubectl = filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	cluster.kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(cluster.kubeconfig, raw); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// buildPrograms builds the repository's programs with the flags of `make build`, so that what it has compiled is used.
func buildPrograms(dir string) error {
	cluster.programs = map[string]string{}
	for name, module := range programs {
		cluster.programs[name] = filepath.Join(dir, name)
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", cluster.programs[name], "./cmd/"+name)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// writeKubeconfig gives the only context the names that the documentation uses.
func writeKubeconfig(path string, raw []byte) error {
	config, err := clientcmd.Load(raw)
	if err != nil {
		return err
	}
	for _, name := range []string{"management", "blue", "green"} {
		config.Contexts[name] = &clientcmdapi.Context{
			Cluster: config.Contexts[config.CurrentContext].Cluster, AuthInfo: config.Contexts[config.CurrentContext].AuthInfo,
		}
	}
	return clientcmd.WriteToFile(*config, path)
}

// definitionFolders are folders and files of CustomResourceDefinitions: ours, Cluster API's and those of other projects.
func definitionFolders() ([]string, error) {
	folders := []string{filepath.Join(root, "manifests/crds"), filepath.Join(root, "test/world/infrastructure/crds"), schemas}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return nil, fmt.Errorf("finding Cluster API's module: %w", err)
	}
	for _, folder := range []string{"core/config/crd/bases", "bootstrap/kubeadm/config/crd/bases", "controlplane/kubeadm/config/crd/bases"} {
		folders = append(folders, filepath.Join(strings.TrimSpace(string(out)), folder))
	}
	for _, source := range upstream {
		var module struct{ Dir, Sum, Error string }
		out, err := exec.Command("go", "mod", "download", "-json", source.module).Output()
		if err == nil {
			err = json.Unmarshal(out, &module)
		}
		if err != nil {
			return nil, fmt.Errorf("downloading %s: %w\n%s", source.module, err, out)
		}
		if module.Sum != source.sum {
			return nil, fmt.Errorf("%s has the checksum %s instead of %s", source.module, module.Sum, source.sum)
		}
		for _, file := range source.files {
			folders = append(folders, filepath.Join(module.Dir, file))
		}
	}
	return folders, nil
}
