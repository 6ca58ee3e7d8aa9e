//! Rules in CEL, `x-kubernetes-validations`: read and checked once, then asked about every object.
//!
//! The crate's parser recurses over chains as long as a rule, so rules are short and are read on a stack that the
//! longest one cannot fill; what is then deeper than [`check`] allows is refused. Rules run on such a stack, too, with
//! the budget of [`fuel`].

mod calls;
mod check;
mod fuel;
mod kind;
mod name;
mod run;
mod value;

use std::collections::BTreeMap;
use std::thread;

use cel::common::ast::IdedExpr;
use serde_json::Value;

use self::check::Scope;
use self::kind::Kind;
use super::structural::{is, properties};
use crate::cause::Cause;

pub use run::validate;

/// What a schema calls them.
pub const RULES: &str = "x-kubernetes-validations";
/// Bytes of a rule or of an expression for a message.
const LONGEST: usize = 4096;
/// Bytes of a message.
const LONGEST_MESSAGE: usize = 2048;
/// Rules of a schema.
const MOST: usize = 256;
/// Address space, of which little is ever touched.
const STACK: usize = 256 << 20;
const WORDS: [&str; 6] = ["rule", "message", "messageExpression", "reason", "fieldPath", "optionalOldSelf"];
const REASONS: [&str; 4] =
    ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];

/// The rules of a schema, in its shape, as far as there are any.
#[derive(Debug, Default)]
pub struct Rules {
    here: Vec<Rule>,
    fields: BTreeMap<String, Rules>,
    /// Of elements of a list, or values of a map.
    each: Option<Box<Rules>>,
    /// By which fields elements of a list are the same as before; None where that is unknown.
    keys: Option<Vec<String>>,
}

#[derive(Debug)]
struct Rule {
    test: IdedExpr,
    steps: u64,
    message: String,
    message_expression: Option<IdedExpr>,
    reason: &'static str,
    /// Below the value, with what joins it.
    field: String,
    looks_back: bool,
    always: bool,
}

impl Rules {
    /// The rules of a schema; invalid ones are left out and logged.
    pub fn read(schema: &Value, at: &str) -> (Self, Vec<Cause>) {
        if !mentions(schema) {
            return (Self::default(), Vec::new());
        }
        let work = || {
            let mut reading = Reading::default();
            let rules = reading.read(schema, at, (true, true));
            (rules, reading.causes)
        };
        apart(work).unwrap_or_else(|why| (Self::default(), vec![Cause::invalid(at, why)]))
    }

    fn is_empty(&self) -> bool {
        self.here.is_empty() && self.fields.is_empty() && self.each.is_none()
    }
}

/// Runs work on a stack that is large enough; the error is its text.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread =
            thread::Builder::new().name("rules".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("rules cannot be run: {error}"))?;
        thread.join().map_err(|_| "rules broke off".to_owned())
    })
}

/// Whether there are rules in a schema.
fn mentions(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key(RULES) || fields.values().any(mentions),
        Value::Array(values) => values.iter().any(mentions),
        _ => false,
    }
}

#[derive(Debug, Default)]
struct Reading {
    count: usize,
    causes: Vec<Cause>,
}

impl Reading {
    /// The rules of a schema, which may be that of a whole object, and whose values may be known from before.
    fn read(&mut self, schema: &Value, at: &str, (root, known): (bool, bool)) -> Rules {
        let mut rules = Rules::default();
        let given = schema.get(RULES).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (index, rule) in given.iter().enumerate() {
            let at = format!("{at}.{RULES}[{index}]");
            self.count += 1;
            if self.count > MOST {
                let message = format!("Too many: must have at most {MOST} rules");
                self.causes.push(Cause::invalid(at, message));
                break;
            }
            match one(schema, rule, (root, known)) {
                Ok(rule) => rules.here.push(rule),
                Err((field, message)) => self.causes.push(Cause::invalid(format!("{at}{field}"), message)),
            }
        }
        for (name, schema) in properties(schema).into_iter().flatten() {
            let below = self.read(schema, &format!("{at}.properties[{name}]"), (false, known));
            if !below.is_empty() {
                rules.fields.insert(name.clone(), below);
            }
        }
        let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
        rules.keys = (text("x-kubernetes-list-type") == "map").then(|| {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            keys.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        });
        let each = match schema.get("items") {
            Some(items) => self.read(items, &format!("{at}.items"), (false, known && rules.keys.is_some())),
            None => match schema.get("additionalProperties").filter(|more| more.is_object()) {
                Some(more) => self.read(more, &format!("{at}.additionalProperties"), (false, known)),
                None => return rules,
            },
        };
        rules.each = (!each.is_empty()).then(|| Box::new(each));
        rules
    }
}

/// A rule, or which field of it makes no sense and why.
fn one(schema: &Value, given: &Value, (root, known): (bool, bool)) -> Result<Rule, (String, String)> {
    let wrong = |field: &str, why: String| (format!(".{field}"), format!("Invalid value: {why}"));
    let Some(fields) = given.as_object() else {
        return Err((String::new(), "Invalid value: must be an object".to_owned()));
    };
    if let Some(unknown) = fields.keys().find(|field| !WORDS.contains(&field.as_str())) {
        return Err(wrong(unknown, "unknown field".to_owned()));
    }
    for field in &WORDS[..5] {
        let limit = if *field == "message" { LONGEST_MESSAGE } else { LONGEST };
        match fields.get(*field).map(Value::as_str) {
            Some(None) => return Err(wrong(field, "must be a text".to_owned())),
            Some(Some(text)) if text.len() > limit => {
                return Err((format!(".{field}"), format!("Too long: may not be more than {limit} bytes")));
            }
            _ => {}
        }
    }
    let text =
        |field: &str| given.get(field).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let Some(rule) = text("rule") else { return Err((".rule".to_owned(), "Required value".to_owned())) };
    let optional = is(given, "optionalOldSelf");
    let before = match (Kind::of(schema, root), optional) {
        (kind, true) => Kind::Optional(Box::new(kind)),
        (kind, false) => kind,
    };
    let mut scope = Scope::of(Kind::of(schema, root), before);
    let mut compiled = |field: &str, source: &str, expected: Kind<'_>| {
        let expr =
            parse(source).map_err(|why| wrong(field, format!("{source:?}: compilation failed: {why}")))?;
        let kind = scope
            .kind(&expr)
            .map_err(|why| wrong(field, format!("{source:?}: compilation failed: {why}")))?;
        match kind.fits(&expected) {
            true => Ok(expr),
            false => Err(wrong(field, format!("{source:?}: must evaluate to a {expected}"))),
        }
    };
    let mut test = compiled("rule", rule, Kind::Bool)?;
    let mut message_expression = match text("messageExpression") {
        Some(source) => Some(compiled("messageExpression", source, Kind::Text)?),
        None => None,
    };
    if scope.looks_back && !known {
        return Err(wrong(
            "rule",
            format!("{rule:?}: oldSelf cannot be used on the uncorrelatable portion of the schema"),
        ));
    }
    if optional && !scope.looks_back {
        return Err(wrong("optionalOldSelf", "may only be set if the rule uses oldSelf".to_owned()));
    }
    let reason = match text("reason") {
        None => REASONS[0],
        Some(given) => REASONS.into_iter().find(|known| *known == given).ok_or_else(|| {
            let message = format!("Unsupported value: {given:?}: supported values: {}", REASONS.join(", "));
            (".reason".to_owned(), message)
        })?,
    };
    let field = match text("fieldPath") {
        None => String::new(),
        Some(path) => field_path(schema, path).ok_or_else(|| {
            wrong("fieldPath", format!("{path:?}: must be a path like .a.b of fields that the schema has"))
        })?,
    };
    let message = text("message").map_or_else(|| format!("failed rule: {rule}"), str::to_owned);
    let steps = fuel::meter(&mut test) + message_expression.as_mut().map_or(0, fuel::meter);
    let (looks_back, always) = (scope.looks_back, optional);
    Ok(Rule { test, steps, message, message_expression, reason, field, looks_back, always })
}

fn parse(source: &str) -> Result<IdedExpr, String> {
    let message = |error: cel::ParseErrors| {
        let errors: Vec<String> = error.errors.iter().take(3).map(|error| error.msg.clone()).collect();
        errors.join("; ")
    };
    fuel::LIBRARY.parser().parse(source).map_err(message)
}

/// The path of a field below a schema, if there is one.
fn field_path(schema: &Value, path: &str) -> Option<String> {
    let mut schema = schema;
    for name in path.strip_prefix('.')?.split('.') {
        schema = super::structural::field(schema, name)?;
    }
    Some(path.to_owned())
}

#[cfg(test)]
mod tests;
