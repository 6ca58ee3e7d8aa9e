use std::fmt;

use serde::Serialize;
use vireo_vmconfig::{DeviceRequest, ExtraDevice};

use super::Field;

/// What kind of problem a field has; KubeVirt's admission answers with the same kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The value is not one this field can have.
    Invalid,
    /// The value is needed.
    Required,
    /// It may be right, but nothing here provides it.
    NotSupported,
    /// It is there twice.
    Duplicate,
    /// It names something that is not there.
    NotFound,
    /// It may not be given here.
    Forbidden,
    /// The list has more elements than there may be.
    TooMany,
}

impl Cause {
    /// As `metav1.CauseType`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooMany => "FieldValueTooMany",
        }
    }
}

/// One thing that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    field: Field,
    cause: Cause,
    message: String,
}

impl Problem {
    /// `message` names the problem and the remedy; it does not repeat the field.
    pub fn new(field: Field, cause: Cause, message: impl Into<String>) -> Self {
        Self { field, cause, message: message.into() }
    }

    /// Where.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// What kind.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// For people, without the field.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.as_str().is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Where a manifest comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client: every problem is reported.
    Request,
    /// The store. It was accepted, and stays readable: what only admission refuses is no problem.
    Store,
}

/// Everything that is wrong with a manifest: wrong types first, then what does not hold together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report(Vec<Problem>);

impl Report {
    /// Leaves out what only follows from a wrong type: a problem of a field that `mistyped` names, or inside it.
    pub fn new(mistyped: Vec<Problem>, found: Vec<Problem>) -> Self {
        let follows = |problem: &Problem| mistyped.iter().any(|known| problem.field.is_within(&known.field));
        let mut problems = Vec::new();
        for problem in mistyped.iter().cloned().chain(found.into_iter().filter(|problem| !follows(problem))) {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        Self(problems)
    }

    /// Each of them.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

/// One problem a line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

/// Where the readers of the parts put what they find.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    /// Those for which only a request is refused: see [`Origin`].
    pub(crate) admission_problems: Vec<Problem>,
    pub(crate) extra_devices: Vec<DeviceRequest>,
    pub(crate) host_devices: Vec<super::HostDevice>,
    pub(crate) notices: Vec<super::Notice>,
}

impl Findings {
    fn add(&mut self, field: &Field, cause: Cause, message: impl Into<String>) {
        self.problems.push(Problem::new(field.clone(), cause, message));
    }

    pub(crate) fn invalid(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, Cause::Invalid, message);
    }

    pub(crate) fn required(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, Cause::Required, message);
    }

    pub(crate) fn duplicate(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, Cause::Duplicate, message);
    }

    pub(crate) fn not_found(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, Cause::NotFound, message);
    }

    pub(crate) fn not_supported(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, Cause::NotSupported, message);
    }

    /// In Kubernetes' form: `Invalid value: 255: must be in the range 1-100`.
    pub(crate) fn invalid_value(&mut self, field: &Field, value: impl Serialize, detail: impl fmt::Display) {
        let value = serde_json::to_string(&value).unwrap_or_default();
        self.add(field, Cause::Invalid, format!("Invalid value: {value}: {detail}"));
    }

    /// Refuses a value in a request alone: see [`Origin`].
    pub(crate) fn refuse_request(&mut self, field: &Field, value: &str, detail: impl fmt::Display) {
        let message = format!("Invalid value: {value:?}: {detail}");
        self.admission_problems.push(Problem::new(field.clone(), Cause::Invalid, message));
    }

    /// Refuses a name that is not known in a request alone, and names the one that may have been meant.
    pub(crate) fn unknown_name(&mut self, field: &Field, name: &str, detail: &str, similar: Option<&str>) {
        let advice = similar.map(|similar| format!(": did you mean {similar}?")).unwrap_or_default();
        self.refuse_request(field, name, format_args!("{detail}{advice}"));
    }

    /// In Kubernetes' form: `Required value: can not be empty`.
    pub(crate) fn required_value(&mut self, field: &Field, detail: impl fmt::Display) {
        self.add(field, Cause::Required, format!("Required value: {detail}"));
    }

    /// In Kubernetes' form: `Unsupported value: "x": supported values: "a", "b"`.
    pub(crate) fn unsupported_value(&mut self, field: &Field, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
        self.add(field, Cause::NotSupported, message);
    }

    /// In Kubernetes' form: `Duplicate value: "x"`.
    pub(crate) fn duplicate_value(&mut self, field: &Field, value: &str) {
        self.add(field, Cause::Duplicate, format!("Duplicate value: {value:?}"));
    }

    /// In Kubernetes' form: `Forbidden: may not be specified`.
    pub(crate) fn forbidden(&mut self, field: &Field, detail: &str) {
        self.add(field, Cause::Forbidden, format!("Forbidden: {detail}"));
    }

    /// In Kubernetes' form: `Too many: 300: must have at most 256 items`; `which` of the items are counted.
    pub(crate) fn too_many(&mut self, field: &Field, count: usize, most: usize, which: &str) {
        self.add(field, Cause::TooMany, format!("Too many: {count}: must have at most {most} items{which}"));
    }

    /// Reports an unsupported feature, if it is requested.
    pub(crate) fn refuse_if(&mut self, asked: bool, field: &Field, what: &str) {
        if asked {
            self.not_supported(field, format!("{what} is not available yet: remove this field"));
        }
    }

    /// Records a device that only some hypervisors have.
    pub(crate) fn extra_device(&mut self, field: &Field, device: ExtraDevice) {
        self.extra_devices.push(DeviceRequest { field: field.to_string(), device });
    }

    /// Records what is accepted without effect, if it is requested.
    pub(crate) fn notice_if(&mut self, asked: bool, field: &Field, why: &str) {
        if asked {
            self.notices.push(super::Notice::new(field.clone(), why.to_owned()));
        }
    }
}
