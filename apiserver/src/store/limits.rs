//! How large and how deeply nested an object may be.
//!
//! Values are measured without recursion, so that also one that is too deep for the stack is refused and not followed.

use std::fmt::{self, Write as _};
use std::slice;

use serde_json::{Number, Value, map};
use thiserror::Error;

/// The most that one object may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of JSON, where escaped characters count as what they stand for.
    pub bytes: usize,
    /// Objects and arrays in each other. A scalar has none.
    pub depth: usize,
}

impl Limits {
    /// Of what clients write. The size is that of an etcd request, which bounds an object of a Kubernetes API server.
    pub const REQUEST: Self = Self { bytes: 3 << 19, depth: 96 };
    /// Of everything in the store: space for what the server adds to an accepted object (status, finalizers,
    /// `managedFields`, which are four levels deeper than the field that they name), and so little depth that serde_json
    /// reads the object back (127 levels), also as a member of a list, a table or a watch event.
    pub const STORED: Self = Self { bytes: 3 << 20, depth: 120 };

    /// The size of a value, if it is within these limits.
    ///
    /// # Errors
    /// Which limit it exceeds.
    pub fn check(&self, value: &Value) -> Result<usize, Excess> {
        let bytes = self.measure(value)?;
        if bytes > self.bytes {
            return Err(Excess::Size { bytes, most: self.bytes });
        }
        Ok(bytes)
    }

    fn measure(&self, value: &Value) -> Result<usize, Excess> {
        let mut bytes = 0;
        let mut open: Vec<Container<'_>> = Vec::new();
        let mut next = Some(value);
        loop {
            let Some(value) = next.take() else {
                let Some(innermost) = open.last_mut() else { return Ok(bytes) };
                next = innermost.next(&mut bytes);
                if next.is_none() {
                    open.pop();
                }
                continue;
            };
            match Container::of(value) {
                Some(_) if open.len() == self.depth => {
                    return Err(Excess::Depth { field: field(&open), most: self.depth });
                }
                Some(container) => {
                    bytes += 2;
                    open.push(container);
                }
                None => bytes += scalar(value),
            }
        }
    }
}

/// The size of any value.
pub(super) fn size_of(value: &Value) -> usize {
    Limits { bytes: usize::MAX, depth: usize::MAX }.check(value).unwrap_or(usize::MAX)
}

/// A limit that an object exceeds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Excess {
    /// It is too large.
    #[error("the object has {bytes} bytes, limit is {most}")]
    Size {
        /// Its size.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// It is nested too deeply.
    #[error("{field}: objects and arrays may be nested at most {most} levels deep")]
    Depth {
        /// Where, as far as that helps.
        field: String,
        /// The limit.
        most: usize,
    },
}

/// An array or object that is being measured.
enum Container<'v> {
    Array(slice::Iter<'v, Value>, usize),
    Object(map::Iter<'v>, &'v str),
}

impl<'v> Container<'v> {
    fn of(value: &'v Value) -> Option<Self> {
        match value {
            Value::Array(values) => Some(Self::Array(values.iter(), 0)),
            Value::Object(fields) => Some(Self::Object(fields.iter(), "")),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }

    /// The next member; counts what stands beside it.
    fn next(&mut self, bytes: &mut usize) -> Option<&'v Value> {
        match self {
            Self::Array(values, count) => {
                let value = values.next()?;
                *bytes += usize::from(*count > 0);
                *count += 1;
                Some(value)
            }
            Self::Object(fields, current) => {
                let (name, value) = fields.next()?;
                // Quotes, the colon, and a comma but for the last.
                *bytes += name.len() + 3 + usize::from(fields.len() > 0);
                *current = name;
                Some(value)
            }
        }
    }
}

/// The path of the member that is being measured: its first names.
fn field(open: &[Container<'_>]) -> String {
    const SHOWN: usize = 3;
    let mut field = String::new();
    for container in open.iter().take(SHOWN) {
        match container {
            Container::Array(_, count) => field.push_str(&format!("[{}]", count.saturating_sub(1))),
            Container::Object(_, name) if field.is_empty() => field.push_str(name),
            Container::Object(_, name) => {
                field.push('.');
                field.push_str(name);
            }
        }
    }
    field
}

fn scalar(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(true) => 4,
        Value::Bool(false) => 5,
        Value::Number(number) => digits(number),
        Value::String(text) => text.len() + 2,
        Value::Array(_) | Value::Object(_) => 0,
    }
}

fn digits(number: &Number) -> usize {
    struct Count(usize);
    impl fmt::Write for Count {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += text.len();
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting does not fail.
    let _ = write!(count, "{number}");
    count.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth)
            .fold(json!(1), |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({"a": inner}) })
    }

    #[test]
    fn what_is_too_deep_is_named_and_not_followed() {
        let limits = Limits { bytes: usize::MAX, depth: 10 };
        assert!(limits.check(&nested(10)).is_ok());
        let deep = json!({"series": {"x": [nested(10)]}});
        let excess = limits.check(&deep).unwrap_err();
        assert_eq!(excess, Excess::Depth { field: "series.x[0]".to_owned(), most: 10 });
        // More than any stack: neither this nor its removal below may recurse.
        let mut deepest = Value::Null;
        for _ in 0..1_000_000 {
            deepest = Value::Array(vec![deepest]);
        }
        assert!(limits.check(&deepest).is_err());
        while let Value::Array(mut values) = deepest {
            deepest = values.pop().unwrap_or_default();
        }
    }

    #[test]
    fn what_is_accepted_is_read_back_in_a_list() {
        let deep = nested(Limits::STORED.depth);
        assert!(Limits::STORED.check(&deep).is_ok());
        let table = json!({"rows": [{"object": deep}]}).to_string();
        assert!(serde_json::from_str::<Value>(&table).is_ok());
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e300..1e300).prop_map(Value::from),
            "[a-zé]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{0,3}", inner, 0..4).prop_map(|fields| json!(fields)),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_size_is_that_of_the_text(value in tree()) {
            let text = value.to_string();
            prop_assert_eq!(Limits::STORED.check(&value), Ok(text.len()));
            let smaller = Limits { bytes: text.len() - 1, ..Limits::STORED };
            prop_assert!(smaller.check(&value).is_err());
        }
    }
}
