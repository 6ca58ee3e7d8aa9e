//! Values of objects as rules see them.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cel::common::types::{
    CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt,
};
use cel::common::value::{CowVal, Val};
use serde_json::Value;

use super::kind::Kind;
use super::{fuel, name};
use crate::schema::structural;

/// A value for rules, which borrows what it can. Fields that no rule can name are left out.
pub(super) fn of<'v>(schema: &Value, value: &'v Value) -> Box<dyn Val + 'v> {
    seen(Some(schema), value)
}

fn seen<'v>(schema: Option<&Value>, value: &'v Value) -> Box<dyn Val + 'v> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(is) => Box::new(CelBool::from(*is)),
        Value::Number(number) => {
            let broken = schema.and_then(|schema| schema.get("type")).is_some_and(|kind| kind == "number");
            match (number.as_i64(), number.as_u64()) {
                (Some(whole), _) if !broken => Box::new(CelInt::from(whole)),
                (None, Some(whole)) if !broken => Box::new(CelUInt::from(whole)),
                _ => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
            }
        }
        Value::String(text) => of_text(schema, text),
        Value::Array(values) => {
            let items = schema.and_then(|schema| schema.get("items"));
            let values: Vec<Box<dyn Val + 'v>> = values.iter().map(|value| seen(items, value)).collect();
            Box::new(CelList::from(values))
        }
        Value::Object(fields) => {
            let is_map = schema.is_some_and(|schema| matches!(Kind::of(schema, false), Kind::Map(_)));
            let mut entries: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = HashMap::new();
            for (field, value) in fields {
                let key = match is_map {
                    true => CelMapKey::from(field.as_str()),
                    false => match name::escaped(field) {
                        Some(written) if written == *field => CelMapKey::from(field.as_str()),
                        Some(written) => CelMapKey::from(written),
                        None => continue,
                    },
                };
                entries.insert(key, seen(schema.and_then(|schema| structural::field(schema, field)), value));
            }
            Box::new(CelMap::from(entries))
        }
    }
}

fn of_text<'v>(schema: Option<&Value>, text: &'v str) -> Box<dyn Val + 'v> {
    let read = |function: &str, text: CelString<'v>| {
        let given = vec![CowVal::owned(text)];
        let read = fuel::LIBRARY.find_overload(function, &given)?;
        read(given).ok().map(CowVal::into_owned)
    };
    let made = match schema.map(|schema| Kind::of(schema, false)) {
        Some(Kind::Timestamp) if text.len() == "2026-01-01".len() => {
            read("timestamp", CelString::from(format!("{text}T00:00:00Z")))
        }
        Some(Kind::Timestamp) => read("timestamp", CelString::from(text)),
        Some(Kind::Duration) => read("duration", CelString::from(text)),
        Some(Kind::Bytes) => STANDARD.decode(text).ok().map(|bytes| {
            let bytes: Box<dyn Val + 'v> = Box::new(CelBytes::from(bytes));
            bytes
        }),
        _ => None,
    };
    made.unwrap_or_else(|| Box::new(CelString::from(text)))
}
