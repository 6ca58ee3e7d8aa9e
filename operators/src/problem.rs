use vireo_api::spec::{self, Cause};

/// Why an object is not accepted: an element of `details.causes` of a `metav1.Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its type.
    pub cause: Cause,
    /// The path of the field.
    pub field: String,
    /// The explanation, without the field.
    pub message: String,
}

impl Problem {
    fn new(cause: Cause, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { cause, field: field.into(), message: message.into() }
    }

    /// The value is not accepted.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Cause::Invalid, field, message)
    }

    /// The value is missing.
    pub fn required(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Cause::Required, field, message)
    }

    /// The value is not supported.
    pub fn unsupported(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Cause::NotSupported, field, message)
    }

    /// The value is not supported: in Kubernetes' form, `Unsupported value: "x": supported values: "a", "b"`.
    pub fn unsupported_value(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
        let message = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
        Self::unsupported(field, message)
    }

    /// The value is there twice.
    pub fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self::new(Cause::Duplicate, field, format!("Duplicate value: {value:?}"))
    }

    /// The value is not permitted.
    pub fn forbidden(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Cause::Forbidden, field, message)
    }

    /// The value refers to an object that does not exist.
    pub fn not_found(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Cause::NotFound, field, message)
    }

    /// A problem of a specification, which is at `path`.
    pub(crate) fn at(path: &str, problem: &spec::Problem) -> Self {
        let field = problem.field().as_str();
        let field = if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
        Self::new(problem.cause(), field, problem.message())
    }
}
