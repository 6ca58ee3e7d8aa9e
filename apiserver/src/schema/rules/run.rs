//! Rules at work.

use std::sync::Arc;

use cel::common::ast::IdedExpr;
use cel::common::types::{CelBool, CelOptional, CelString};
use cel::common::value::Val;
use cel::{Context, ExecutionError, Value as Result_};
use serde_json::Value;

use super::{Rule, Rules, apart, fuel, value};
use crate::cause::Cause;
use crate::schema::{join, structural};

/// What the rules have against a value that was another before.
pub fn validate(rules: &Rules, schema: &Value, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    if rules.is_empty() {
        return Vec::new();
    }
    let work = || {
        let mut causes = Vec::new();
        fuel::fill();
        look(rules, (schema, ""), new, old, &mut causes);
        causes
    };
    apart(work).unwrap_or_else(|why| vec![Cause::invalid("", format!("Invalid value: \"object\": {why}"))])
}

fn look(
    rules: &Rules,
    (schema, at): (&Value, &str),
    new: &Value,
    old: Option<&Value>,
    causes: &mut Vec<Cause>,
) {
    if new.is_null() {
        return;
    }
    if !rules.here.is_empty() {
        // What is read of the values is paid for as it is used; this is what reading them costs.
        let size = weight(new) + old.map_or(0, weight);
        if fuel::pay(size).is_ok() {
            let now = value::of(schema, new);
            let before = old.map(|old| value::of(schema, old));
            for rule in &rules.here {
                causes.extend(rule.validate(schema, at, now.as_ref(), before.as_deref()));
            }
        }
        if fuel::is_out() {
            let message = "Invalid value: \"object\": the rules of this object cost too much";
            causes.push(Cause::invalid(at, message));
        }
    }
    if fuel::is_out() {
        return;
    }
    match new {
        Value::Object(fields) => {
            for (name, value) in fields {
                let below = rules.fields.get(name).or(rules.each.as_deref());
                let (Some(below), Some(schema)) = (below, structural::field(schema, name)) else { continue };
                let old = old.and_then(|old| old.get(name));
                look(below, (schema, &join(at, name)), value, old, causes);
            }
        }
        Value::Array(values) => {
            let (Some(below), Some(items)) = (&rules.each, schema.get("items")) else { return };
            for (index, value) in values.iter().enumerate() {
                let old = rules.keys.as_ref().and_then(|keys| {
                    let same = |one: &&Value| keys.iter().all(|key| one.get(key) == value.get(key));
                    old?.as_array()?.iter().find(same)
                });
                look(below, (items, &format!("{at}[{index}]")), value, old, causes);
            }
        }
        _ => {}
    }
}

fn weight(value: &Value) -> u64 {
    1 + match value {
        Value::Array(values) => values.iter().map(weight).sum(),
        Value::Object(fields) => fields.values().map(weight).sum(),
        Value::String(text) => text.len() as u64 / 8,
        _ => 0,
    }
}

impl Rule {
    fn validate<'v>(
        &self,
        schema: &Value,
        at: &str,
        now: &(dyn Val + 'v),
        before: Option<&(dyn Val + 'v)>,
    ) -> Option<Cause> {
        if self.looks_back && !self.always && before.is_none() {
            return None;
        }
        let mut context = Context::with_env(Arc::clone(&fuel::LIBRARY));
        context.add_variable_as_val("self", now.clone_as_boxed());
        if self.looks_back {
            let before: Option<Box<dyn Val + 'v>> = match (self.always, before) {
                (false, before) => before.map(Val::clone_as_boxed),
                (true, Some(before)) => Some(Box::new(CelOptional::of(before.clone_as_boxed()))),
                (true, None) => Some(Box::new(CelOptional::none())),
            };
            if let Some(before) = before {
                context.add_variable_as_val("oldSelf", before);
            }
        }
        let holds = fuel::pay(self.steps).and_then(|()| {
            let result = Result_::resolve_val(&self.test, &context)?;
            Ok(result.downcast_ref::<CelBool>().is_some_and(|holds| *holds.inner()))
        });
        let why = match holds {
            Ok(true) => return None,
            Ok(false) => self
                .message_expression
                .as_ref()
                .and_then(|expression| evaluate(expression, &context))
                .unwrap_or_else(|| self.message.clone()),
            Err(error) => format!("{error} evaluating rule: {}", self.message),
        };
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or("object");
        let message = match self.reason {
            "FieldValueForbidden" => format!("Forbidden: {why}"),
            "FieldValueRequired" => format!("Required value: {why}"),
            "FieldValueDuplicate" => format!("Duplicate value: {kind:?}: {why}"),
            _ => format!("Invalid value: {kind:?}: {why}"),
        };
        let field = format!("{at}{}", self.field);
        let field = field.trim_start_matches('.').to_owned();
        Some(Cause {
            reason: self.reason,
            message,
            field: if field.is_empty() { "<nil>".to_owned() } else { field },
        })
    }
}

/// The value of a message expression: one line that is not empty.
fn evaluate(expression: &IdedExpr, context: &Context<'_, '_>) -> Option<String> {
    let value: Result<_, ExecutionError> = Result_::resolve_val(expression, context);
    let value = value.ok()?;
    let text = value.downcast_ref::<CelString>()?.inner().trim();
    (!text.is_empty() && !text.contains('\n') && text.len() <= super::LONGEST_MESSAGE)
        .then(|| text.to_owned())
}
