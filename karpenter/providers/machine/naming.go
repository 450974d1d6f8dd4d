// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// shortens matches the functions of sprig that lose a part of a name.
var shortens = regexp.MustCompile(`\b(trunc|substr|abbrev|abbrevboth|initials|adler32sum|sha\d+sum)\b`)

// checkNaming returns an error for a template that names instances, as Cluster API Provider vSphere's do, and leaves out a part of the Machine's
// name: two Machines would share an instance, and a node.
func checkNaming(infrastructure *unstructured.Unstructured) error {
	for _, field := range []string{"naming", "namingStrategy"} {
		text, _, _ := unstructured.NestedString(infrastructure.Object, "spec", "template", "spec", field, "template")
		if text != "" && (!strings.Contains(text, ".machine.name") || shortens.MatchString(text)) {
			return fmt.Errorf("spec.template.spec.%s.template lets two Machines share an instance: it leaves out a part of .machine.name", field)
		}
	}
	return nil
}
