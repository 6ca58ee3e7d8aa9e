//! CustomResourceDefinitions, as tables.

use super::core::Definition;

pub(crate) const DEFINITIONS: &[Definition] = &[
    (
        "CustomResourceDefinition",
        "Represents a resource that is exposed on the API server. Its name is <spec.names.plural>.<spec.group>.",
        &[
            ("spec", "CrdSpec", "How the user wants the resources to appear."),
            ("status", "CrdStatus", "Actual state of the CustomResourceDefinition. Read-only."),
        ],
    ),
    (
        "CrdSpec",
        "Describes how users want their resources to appear.",
        &[
            ("group", "string", "API group of the custom resource, which is served under /apis/<group>/."),
            ("names", "CrdNames", "Resource and kind names of the custom resource."),
            (
                "scope",
                "string",
                "Whether the custom resource is Cluster- or Namespace-scoped: Cluster or Namespaced.",
            ),
            (
                "versions",
                "[]CrdVersion",
                "API versions of the custom resource. This server serves the storage version only.",
            ),
            ("conversion", "any", "Conversion between versions. The only supported strategy is None."),
            (
                "preserveUnknownFields",
                "boolean",
                "Deprecated: must be false; set x-kubernetes-preserve-unknown-fields in the schema instead.",
            ),
        ],
    ),
    (
        "CrdNames",
        "Names by which a custom resource is served and referred to.",
        &[
            (
                "plural",
                "string",
                "Plural name of the resource, in lower case. Resources are served under /apis/<group>/<version>/.../<plural>.",
            ),
            (
                "singular",
                "string",
                "Singular name of the resource, in lower case. Defaults to the kind in lower case.",
            ),
            ("kind", "string", "Serialized kind of the resource, in CamelCase and singular."),
            ("listKind", "string", "Serialized kind of lists of the resource. Defaults to <kind>List."),
            (
                "shortNames",
                "[]string",
                "Short names of the resource, which clients accept: kubectl get <shortname>.",
            ),
            (
                "categories",
                "[]string",
                "Grouped resources that the resource belongs to, such as all, which clients accept: kubectl get all.",
            ),
        ],
    ),
    (
        "CrdVersion",
        "Describes a version of a custom resource.",
        &[
            ("name", "string", "Name of the version, such as v1 or v2beta1. It is part of the path."),
            ("served", "boolean", "Whether the version is served by REST APIs."),
            (
                "storage",
                "boolean",
                "Whether objects are persisted in this version. Exactly one version must be the storage version.",
            ),
            (
                "deprecated",
                "boolean",
                "Whether the version is deprecated. This server does not warn its clients.",
            ),
            (
                "deprecationWarning",
                "string",
                "Warning to clients of a deprecated version. Not used by this server.",
            ),
            (
                "schema",
                "any",
                "Schema of the version, by which objects are validated, pruned and defaulted: openAPIV3Schema.",
            ),
            ("subresources", "any", "Subresources of the custom resource: status and scale."),
            (
                "additionalPrinterColumns",
                "[]any",
                "Additional columns of tables. Defaults to the age of the object.",
            ),
            (
                "selectableFields",
                "[]any",
                "Fields that field selectors may name. Not supported by this server.",
            ),
        ],
    ),
    (
        "CrdStatus",
        "Actual state of a CustomResourceDefinition.",
        &[
            (
                "conditions",
                "[type]any",
                "State of particular aspects of the CustomResourceDefinition, such as NamesAccepted and Established.",
            ),
            (
                "acceptedNames",
                "CrdNames",
                "Names that are used to serve discovery. They may differ from those in spec.",
            ),
            (
                "storedVersions",
                "[]string",
                "Versions in which objects have ever been persisted. A version in this list cannot be removed from spec.versions.",
            ),
        ],
    ),
];
