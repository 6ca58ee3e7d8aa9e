//! The types of `metav1` that the kinds share, as tables.

use super::core::Definition;

pub(crate) const DEFINITIONS: &[Definition] = &[
    (
        "ObjectMeta",
        "Metadata that every persisted resource has.",
        &[
            (
                "name",
                "string",
                "Name of the object, unique in its namespace among the objects of its kind. It is required for creation unless generateName is set, and cannot be updated.",
            ),
            (
                "generateName",
                "string",
                "Prefix from which the server generates a unique name when name is not set.",
            ),
            (
                "namespace",
                "string",
                "Namespace within which the name is unique. Empty for cluster-scoped objects. Cannot be updated.",
            ),
            (
                "uid",
                "string",
                "Identifier that is unique in time and space. Set by the server on creation; read-only.",
            ),
            (
                "resourceVersion",
                "string",
                "Opaque version of the object, for optimistic concurrency, change detection and watches. Set by the server on every write; read-only.",
            ),
            (
                "generation",
                "integer",
                "Sequence number of the desired state: it increases when the spec changes. Set by the server; read-only.",
            ),
            (
                "creationTimestamp",
                "time",
                "Time at which the server created the object. Set by the server; read-only.",
            ),
            (
                "deletionTimestamp",
                "time",
                "Time after which the object is deleted, set by the server when a graceful deletion is requested; read-only. The object is removed when its finalizers list is empty.",
            ),
            (
                "deletionGracePeriodSeconds",
                "integer",
                "Seconds that the object has to terminate gracefully before it is removed. Set only when deletionTimestamp is set; read-only.",
            ),
            (
                "labels",
                "{}string",
                "Keys and values that organize and categorize objects, and by which selectors select them.",
            ),
            (
                "annotations",
                "{}string",
                "Unstructured keys and values that tools store with the object. They cannot be queried.",
            ),
            (
                "finalizers",
                "[=]string",
                "Identifiers of the components that must each remove their entry before a deleted object is removed. While deletionTimestamp is set, entries can only be removed.",
            ),
            (
                "ownerReferences",
                "[uid]OwnerReference",
                "Objects that this object depends on. It is garbage collected when all of them have been deleted. At most one of them is the managing controller.",
            ),
            (
                "managedFields",
                "[]ManagedFieldsEntry",
                "Which field manager set which fields, in which version. Maintained by the server for server-side apply.",
            ),
            ("selfLink", "string", "Deprecated: no longer set by the server."),
        ],
    ),
    (
        "ManagedFieldsEntry",
        "The fields that one field manager has set by one kind of operation.",
        &[
            ("manager", "string", "Name of the field manager."),
            ("operation", "string", "Operation that created the entry: Apply or Update."),
            ("apiVersion", "string", "Group and version of the resource that this set of fields applies to."),
            (
                "time",
                "time",
                "Time at which the entry was added, or at which the manager last changed its fields.",
            ),
            ("fieldsType", "string", "Format of fieldsV1. The only value is FieldsV1."),
            ("fieldsV1", "any", "Set of fields, in the FieldsV1 format."),
            (
                "subresource",
                "string",
                "Subresource through which the object was updated; empty for the main resource.",
            ),
        ],
    ),
    (
        "OwnerReference",
        "Identifies an owner of an object. The owner is in the same namespace as the object, or is cluster-scoped.",
        &[
            ("apiVersion", "string", "API version of the owner."),
            ("kind", "string", "Kind of the owner."),
            ("name", "string", "Name of the owner."),
            ("uid", "string", "UID of the owner."),
            ("controller", "boolean", "Whether the owner is the managing controller."),
            (
                "blockOwnerDeletion",
                "boolean",
                "Whether, with foreground deletion, the owner is not removed until this reference is. Requires permission to update the finalizers of the owner.",
            ),
        ],
    ),
    (
        "LabelSelector",
        "A label query over a set of objects. The results of matchLabels and matchExpressions are ANDed. An empty selector matches all objects; a null selector matches none.",
        &[
            (
                "matchLabels",
                "{}string",
                "Labels and values that an object must have. Each pair is equivalent to a matchExpressions entry with the operator In and this single value.",
            ),
            (
                "matchExpressions",
                "[]LabelSelectorRequirement",
                "Label selector requirements, which are ANDed.",
            ),
        ],
    ),
    (
        "LabelSelectorRequirement",
        "A key, an operator, and the values to which the operator relates the key.",
        &[
            ("key", "string", "Label key that the requirement applies to."),
            ("operator", "string", "Relation of the key to the values: In, NotIn, Exists or DoesNotExist."),
            (
                "values",
                "[]string",
                "Label values. Not empty if the operator is In or NotIn; empty if it is Exists or DoesNotExist.",
            ),
        ],
    ),
    (
        "ListMeta",
        "Metadata that every list has.",
        &[
            (
                "resourceVersion",
                "string",
                "Version of the store at which the list was read; a watch can start from it. Set by the server; read-only.",
            ),
            (
                "continue",
                "string",
                "Token that retrieves the next chunk of a list that was limited; empty in the last chunk.",
            ),
            ("remainingItemCount", "integer", "Number of subsequent items that are not in this chunk."),
        ],
    ),
];
