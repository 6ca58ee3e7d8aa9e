use serde_json::json;

use super::*;

fn schema(rules: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": rules, "properties": {
        "a": {"type": "integer"}, "b": {"type": "integer"}, "name": {"type": "string"}, "a-b": {"type": "string"},
        "in": {"type": "boolean"}, "ratio": {"type": "number"}, "size": {"x-kubernetes-int-or-string": true},
        "when": {"type": "string", "format": "date-time"}, "wait": {"type": "string", "format": "duration"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "words": {"type": "array", "items": {"type": "string"}},
        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
            "items": {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}}}}}})
}

/// The messages for a spec and its old value; the rule must be sound.
fn messages(rule: Value, new: Value, old: Option<Value>) -> Vec<String> {
    let schema = schema(json!([rule]));
    let (rules, causes) = Rules::read(&schema, "at");
    assert_eq!(causes, [], "{rule}");
    let old = old.map(|old| json!({ "spec": old }));
    let causes = validate(&rules, &schema, &json!({ "spec": new }), old.as_ref());
    causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

#[test]
fn rules_hold_or_do_not() {
    let full = json!({"a": 1, "b": 2, "name": "abc-1", "a-b": "x", "in": true, "ratio": 0.5, "size": "10%",
        "when": "2026-01-01T10:00:00Z", "wait": "90s", "labels": {"k": "v", "a-b": "c"}, "words": ["x", "yy", "x"],
        "parts": [{"id": "p", "n": 1}, {"id": "q", "n": 2}]});
    for (rule, holds) in [
        ("self.a < self.b", true),
        ("self.a > self.b", false),
        ("self.a + 1 == self.b && -self.a == 0 - 1", true),
        ("has(self.a) && !has(self.labels.nothing)", true),
        ("self.a__dash__b == 'x' && self.__in__", true),
        ("self.labels['a-b'] == 'c' && 'k' in self.labels", true),
        ("self.labels.all(k, size(k) > 2)", false),
        ("self.words.all(w, w.size() < 3)", true),
        ("self.words.exists(w, w == 'z')", false),
        ("self.words.exists_one(w, w == 'yy')", true),
        ("self.words.map(w, w + w) == ['xx', 'yyyy', 'xx']", true),
        ("self.words.filter(w, w.startsWith('y')).size() == 1", true),
        ("self.parts.all(p, self.parts.exists_one(q, q.id == p.id))", true),
        ("self.name.matches('^[a-z]+-[0-9]$') && matches(self.name, 'b')", true),
        ("self.name.contains('c-') && self.name.endsWith('2')", false),
        ("string(self.a) == '1' && int('2') == self.b && double(self.a) < 1.5 && bool('true')", true),
        ("type(self.size) == string ? self.size.endsWith('%') : self.size > 0", true),
        ("self.when > timestamp('2025-12-31T00:00:00Z') && self.wait == duration('1m30s')", true),
        ("self.wait > duration('2m') || self.when.getHours() == 11", false),
        ("self.ratio <= 1.0 && self.name.split('-')[1] == '1' && self.name.upperAscii() == 'ABC-1'", true),
        ("self.a in [1, 2, 3]", true),
        ("self.parts.map(p, p.n) == [1, 2]", true),
    ] {
        let found = messages(json!({"rule": rule, "message": "no"}), full.clone(), None);
        let expected: &[&str] = if holds { &[] } else { &["spec: Invalid value: \"object\": no"] };
        assert_eq!(found, expected, "{rule}");
    }
}

#[test]
fn causes_have_the_form_of_kubernetes() {
    for (rule, new, old, expected) in [
        (
            json!({"rule": "self.a > 1"}),
            json!({"a": 1}),
            None,
            vec!["spec: Invalid value: \"object\": failed rule: self.a > 1"],
        ),
        (
            json!({"rule": "self.a > 1", "fieldPath": ".a", "message": "small", "reason": "FieldValueForbidden"}),
            json!({"a": 1}),
            None,
            vec!["spec.a: Forbidden: small"],
        ),
        (
            json!({"rule": "self.a > 1", "message": "m", "messageExpression": "'is ' + string(self.a)"}),
            json!({"a": 1}),
            None,
            vec!["spec: Invalid value: \"object\": is 1"],
        ),
        (
            json!({"rule": "self.a > 1", "message": "m", "messageExpression": "'is ' + self.name"}),
            json!({"a": 1}),
            None,
            vec!["spec: Invalid value: \"object\": m"],
        ),
        (
            json!({"rule": "self.a > 1", "message": "m"}),
            json!({}),
            None,
            vec!["spec: Invalid value: \"object\": No such key: a evaluating rule: m"],
        ),
        (json!({"rule": "self.a == oldSelf.a"}), json!({"a": 1}), None, vec![]),
        (
            json!({"rule": "self.a == oldSelf.a", "message": "fixed"}),
            json!({"a": 1}),
            Some(json!({"a": 2})),
            vec!["spec: Invalid value: \"object\": fixed"],
        ),
        (json!({"rule": "self.a == oldSelf.a"}), json!({"a": 1}), Some(json!({"a": 1})), vec![]),
        (
            json!({"rule": "!oldSelf.hasValue() || self.a >= oldSelf.value().a", "optionalOldSelf": true}),
            json!({"a": 1}),
            None,
            vec![],
        ),
        (
            json!({"rule": "oldSelf.hasValue()", "message": "never new", "optionalOldSelf": true}),
            json!({"a": 1}),
            None,
            vec!["spec: Invalid value: \"object\": never new"],
        ),
        (
            json!({"rule": "self.a >= oldSelf.?a.orValue(5)", "message": "less", "optionalOldSelf": true}),
            json!({"a": 1}),
            Some(json!({})),
            vec!["spec: Invalid value: \"object\": less"],
        ),
    ] {
        assert_eq!(messages(rule.clone(), new, old), expected, "{rule}");
    }
}

#[test]
fn rules_below_are_asked_by_key() {
    let mut schema = schema(json!([]));
    let spec = &mut schema["properties"]["spec"]["properties"];
    spec["parts"]["items"][RULES] = json!([{"rule": "self.n >= oldSelf.n", "message": "grows"}]);
    spec["labels"]["additionalProperties"][RULES] = json!([{"rule": "self != 'bad'", "message": "bad"}]);
    spec["words"]["items"][RULES] = json!([{"rule": "self.size() < 4", "message": "long"}]);
    schema[RULES] =
        json!([{"rule": "self.metadata.name.startsWith('x') && self.kind == 'Box'", "message": "root"}]);
    let (rules, causes) = Rules::read(&schema, "at");
    assert_eq!(causes, []);
    let old = json!({"spec": {"parts": [{"id": "p", "n": 1}, {"id": "q", "n": 5}]}});
    let new = json!({"kind": "Box", "metadata": {"name": "y"}, "spec": {"labels": {"k": "bad"}, "words": ["four", "x"],
        "parts": [{"id": "q", "n": 4}, {"id": "p", "n": 1}, {"id": "r", "n": 0}]}});
    let messages: Vec<String> =
        validate(&rules, &schema, &new, Some(&old)).into_iter().map(|cause| cause.field).collect();
    assert_eq!(messages, ["<nil>", "spec.labels.k", "spec.parts[0]", "spec.words[0]"]);
}

/// Why a rule is refused with its definition.
fn refused(rule: Value) -> (String, String) {
    let (_, causes) = Rules::read(&schema(json!([rule])), "at");
    let [cause] = causes.as_slice() else { panic!("{rule}: {causes:?}") };
    (cause.field.clone(), cause.message.clone())
}

#[test]
fn what_makes_no_sense_is_refused_with_the_definition() {
    for (rule, field, why) in [
        (json!({}), ".rule", "Required value"),
        (json!({"rule": "self.a >"}), ".rule", "Syntax error"),
        (json!({"rule": "self.c > 1"}), ".rule", "undefined field 'c'"),
        (json!({"rule": "has(self.c)"}), ".rule", "undefined field 'c'"),
        (json!({"rule": "self.parts.all(p, p.m > 1)"}), ".rule", "undefined field 'm'"),
        (json!({"rule": "other > 1"}), ".rule", "undeclared reference to 'other'"),
        (json!({"rule": "self.name.replace('a', 'b') == 'b'"}), ".rule", "undeclared reference to 'replace'"),
        (
            json!({"rule": "quantity('1Gi').isGreaterThan(quantity('1'))"}),
            ".rule",
            "undeclared reference to 'quantity'",
        ),
        (
            json!({"rule": "self.a > 'x'"}),
            ".rule",
            "found no matching overload for '_>_' applied to '(int, string)'",
        ),
        (json!({"rule": "self.a.startsWith('x')"}), ".rule", "found no matching overload for 'startsWith'"),
        (json!({"rule": "self.a"}), ".rule", "must evaluate to a bool"),
        (json!({"rule": "self.all(k, true)"}), ".rule", "cannot be range"),
        (
            json!({"rule": "true", "messageExpression": "self.a"}),
            ".messageExpression",
            "must evaluate to a string",
        ),
        (json!({"rule": "true", "reason": "Because"}), ".reason", "Unsupported value"),
        (json!({"rule": "true", "fieldPath": ".c"}), ".fieldPath", "of fields that the schema has"),
        (json!({"rule": "true", "optionalOldSelf": true}), ".optionalOldSelf", "only be set if"),
        (json!({"rule": "true", "odd": 1}), ".odd", "unknown field"),
        (json!({"rule": 1}), ".rule", "must be a text"),
        (json!({"rule": format!("self.name == '{}'", "x".repeat(LONGEST))}), ".rule", "Too long"),
    ] {
        let (at, message) = refused(rule.clone());
        assert_eq!(at, format!("at.properties[spec].{RULES}[0]{field}"), "{rule}");
        assert!(message.contains(why), "{rule}: {message}");
    }
    let mut schema = schema(json!([]));
    schema["properties"]["spec"]["properties"]["words"]["items"][RULES] =
        json!([{"rule": "self == oldSelf"}]);
    let causes = Rules::read(&schema, "at").1;
    assert!(causes[0].message.contains("uncorrelatable"), "{causes:?}");
}

#[test]
fn hostile_rules_are_refused_and_the_parser_ends() {
    let nested = |open: &str, close: &str| {
        let times = LONGEST / (open.len() + close.len()) - 2;
        format!("{}1{}", open.repeat(times), close.repeat(times))
    };
    for rule in [
        nested("(", ")"),
        nested("[", "]"),
        nested("!", ""),
        nested("-", ""),
        nested("1+", ""),
        nested("1<", ""),
        nested("{'a':", "}"),
        nested("true?1:", ""),
        nested("self.all(x,", ")"),
        format!("self{}", ".a".repeat(LONGEST / 2 - 4)),
        format!("self{}", "[0]".repeat(LONGEST / 3 - 4)),
        nested("self.a&&", ""),
        "\u{0}\u{202e}'".repeat(99),
        "((((((((".repeat(500),
        "[[[[?.?.?..".repeat(300),
    ] {
        refused(json!({ "rule": rule }));
    }
}

#[test]
fn rules_that_cost_too_much_end() {
    let words: Vec<String> = (0..2000).map(|word| format!("word{word}")).collect();
    let doubling = format!("['x']{}.size() > 0", ".map(s, s + s)".repeat(80));
    let copies = format!("['x']{}.size() > 0", ".map(s, [s, s].map(t, t)[0] + s + s + s)".repeat(60));
    for rule in [
        "self.words.all(a, self.words.all(b, self.words.all(c, a != 'x')))",
        "self.words.map(a, self.words).map(a, self.words.map(b, a)).size() > 0",
        "self.words.all(a, 'x'.matches(a + '(a{50}){50}') || true)",
        &doubling,
        &copies,
    ] {
        let found = messages(json!({ "rule": rule }), json!({"words": words}), None);
        assert!(found.iter().any(|why| why.contains("cost too much")), "{rule}: {found:?}");
    }
}
