//! The functions and operators that rules may use, and what comes out of them.

use cel::common::ast::operators;

use super::kind::Kind;

/// What a call makes of its arguments, the first of them what it is called on if `member`.
pub(super) fn result<'s>(name: &str, member: bool, given: &[Kind<'s>]) -> Result<Kind<'s>, String> {
    let found =
        if member { of_member(name, given) } else { operator(name, given).or_else(|| global(name, given)) };
    found.ok_or_else(|| match known(name) {
        false => format!("undeclared reference to '{name}': this function is not available"),
        true => {
            let types: Vec<String> = given.iter().map(Kind::to_string).collect();
            format!("found no matching overload for '{name}' applied to '({})'", types.join(", "))
        }
    })
}

const GLOBAL: [&str; 12] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "int",
    "matches",
    "size",
    "string",
    "timestamp",
    "type",
    "uint",
];
const MEMBERS: [&str; 26] = [
    "charAt",
    "contains",
    "endsWith",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "hasValue",
    "indexOf",
    "lastIndexOf",
    "lowerAscii",
    "matches",
    "orValue",
    "size",
    "split",
    "startsWith",
    "substring",
    "trim",
    "upperAscii",
    "value",
];

fn known(name: &str) -> bool {
    GLOBAL.contains(&name)
        || MEMBERS.contains(&name)
        || !name.starts_with(|first: char| first.is_ascii_alphabetic())
}

fn operator<'s>(name: &str, given: &[Kind<'s>]) -> Option<Kind<'s>> {
    use Kind::{Any, Bool, Bytes, Double, Duration, Int, List, Map, Optional, Text, Timestamp, Uint};
    Some(match (name, given) {
        (operators::LOGICAL_AND | operators::LOGICAL_OR, [Bool | Any, Bool | Any])
        | (operators::LOGICAL_NOT | operators::NOT_STRICTLY_FALSE, [Bool | Any]) => Bool,
        (operators::CONDITIONAL, [Bool | Any, one, other]) if one.fits(other) => {
            one.clone().or(other.clone())
        }
        (operators::EQUALS | operators::NOT_EQUALS, [one, other]) if one.fits(other) => Bool,
        (
            operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
            [
                one @ (Any | Bool | Int | Uint | Double | Text | Bytes | Duration | Timestamp),
                other @ (Any | Bool | Int | Uint | Double | Text | Bytes | Duration | Timestamp),
            ],
        ) if one.fits(other) => Bool,
        (operators::ADD | operators::SUBSTRACT, [Timestamp, Duration]) => Timestamp,
        (operators::ADD, [Duration, Timestamp]) => Timestamp,
        (operators::SUBSTRACT, [Timestamp, Timestamp]) => Duration,
        (operators::ADD, [one @ (Any | Int | Uint | Double | Text | Bytes | Duration | List(_)), other])
            if one.fits(other) =>
        {
            one.clone().or(other.clone())
        }
        (operators::SUBSTRACT, [one @ (Any | Int | Uint | Double | Duration), other])
        | (operators::MULTIPLY | operators::DIVIDE, [one @ (Any | Int | Uint | Double), other])
        | (operators::MODULO, [one @ (Any | Int | Uint), other])
            if one.fits(other) =>
        {
            one.clone().or(other.clone())
        }
        (operators::NEGATE, [one @ (Any | Int | Double | Duration)]) => one.clone(),
        (operators::INDEX, [List(of), Int | Uint | Any] | [Map(of), Text | Any]) => (**of).clone(),
        (operators::INDEX, [Any, _]) => Any,
        (operators::OPT_INDEX, [List(of), Int | Uint | Any] | [Map(of), Text | Any]) => Optional(of.clone()),
        (operators::IN, [one, List(of)]) if one.fits(of) => Bool,
        (operators::IN, [Text | Any, Map(_)] | [_, Any]) => Bool,
        _ => return None,
    })
}

fn global<'s>(name: &str, given: &[Kind<'s>]) -> Option<Kind<'s>> {
    use Kind::{Any, Bool, Bytes, Double, Duration, Int, List, Map, Text, Timestamp, Type, Uint};
    Some(match (name, given) {
        ("size", [Any | Text | Bytes | List(_) | Map(_)]) => Int,
        ("matches", [Text | Any, Text | Any]) => Bool,
        ("bool", [Any | Bool | Text]) => Bool,
        ("bytes", [Any | Bytes | Text]) => Bytes,
        ("double", [Any | Double | Int | Uint | Text]) => Double,
        ("duration", [Any | Duration | Text]) => Duration,
        ("int", [Any | Int | Uint | Double | Text | Timestamp]) => Int,
        ("string", [Any | Bool | Bytes | Double | Duration | Int | Text | Timestamp | Uint]) => Text,
        ("timestamp", [Any | Text | Timestamp | Int]) => Timestamp,
        ("uint", [Any | Int | Uint | Double | Text]) => Uint,
        ("type", [_]) => Type,
        ("dyn", [_]) => Any,
        _ => return None,
    })
}

fn of_member<'s>(name: &str, given: &[Kind<'s>]) -> Option<Kind<'s>> {
    use Kind::{Any, Bool, Bytes, Duration, Int, List, Map, Optional, Text, Timestamp};
    Some(match (name, given) {
        ("startsWith" | "endsWith" | "contains" | "matches", [Text | Any, Text | Any]) => Bool,
        ("size", [Any | Text | Bytes | List(_) | Map(_)]) => Int,
        ("lowerAscii" | "upperAscii" | "trim", [Text | Any]) => Text,
        ("charAt", [Text | Any, Int | Any]) => Text,
        ("substring", [Text | Any, Int | Any] | [Text | Any, Int | Any, Int | Any]) => Text,
        ("indexOf" | "lastIndexOf", [Text | Any, Text | Any] | [Text | Any, Text | Any, Int | Any]) => Int,
        ("split", [Text | Any, Text | Any] | [Text | Any, Text | Any, Int | Any]) => List(Box::new(Text)),
        ("getHours" | "getMinutes" | "getSeconds" | "getMilliseconds", [Any | Duration | Timestamp]) => Int,
        (
            "getDate" | "getDayOfMonth" | "getDayOfWeek" | "getDayOfYear" | "getFullYear" | "getMonth",
            [Any | Timestamp],
        ) => Int,
        (
            "getDate" | "getDayOfMonth" | "getDayOfWeek" | "getDayOfYear" | "getFullYear" | "getMonth"
            | "getHours" | "getMinutes" | "getSeconds" | "getMilliseconds",
            [Any | Timestamp, Text | Any],
        ) => Int,
        ("hasValue", [Optional(_)]) => Bool,
        ("value", [Optional(of)]) => (**of).clone(),
        ("orValue", [Optional(of), other]) if of.fits(other) => (**of).clone(),
        _ => return None,
    })
}
