package main

import (
	"fmt"
	"io"
	"os"

	admission "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/yaml"
)

// Checks the types of the expressions of the policy on standard input as the controller manager does.
func checkTypes() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var policy admission.ValidatingAdmissionPolicy
	if err := yaml.UnmarshalStrict(text, &policy); err != nil {
		return err
	}
	kinds := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Node", "Secret", "ConfigMap"} {
		kinds.Add(core.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	checker := validating.TypeChecker{
		SchemaResolver: resolver.NewDefinitionsSchemaResolver(openapi.GetOpenAPIDefinitions, scheme.Scheme),
		RestMapper:     kinds,
	}
	warnings := checker.Check(&policy)
	for _, warning := range warnings {
		fmt.Printf("%s: %s\n", warning.FieldRef, warning.Warning)
	}
	if len(warnings) > 0 {
		return fmt.Errorf("%s: %d warnings", policy.Name, len(warnings))
	}
	return nil
}
