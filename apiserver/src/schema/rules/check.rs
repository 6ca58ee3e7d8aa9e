//! Whether a rule makes sense, before any value is there: it names fields that there are, and calls functions that
//! there are with what they take.

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};

use super::calls;
use super::kind::Kind;

/// Expressions in expressions.
const DEEPEST: usize = 100;

/// What names mean, the latest last.
pub(super) struct Scope<'s> {
    names: Vec<(String, Kind<'s>)>,
    depth: usize,
    /// Whether the value before was asked for.
    pub(super) looks_back: bool,
}

impl<'s> Scope<'s> {
    /// `self` and `oldSelf`.
    pub(super) fn of(now: Kind<'s>, before: Kind<'s>) -> Self {
        let names = vec![("self".to_owned(), now), ("oldSelf".to_owned(), before)];
        Self { names, depth: 0, looks_back: false }
    }

    /// What an expression is; else why it makes no sense.
    pub(super) fn kind(&mut self, expr: &IdedExpr) -> Result<Kind<'s>, String> {
        if self.depth == DEEPEST {
            return Err("expressions are nested too deeply".to_owned());
        }
        self.depth += 1;
        let kind = self.look(expr);
        self.depth -= 1;
        kind
    }

    fn look(&mut self, expr: &IdedExpr) -> Result<Kind<'s>, String> {
        match &expr.expr {
            Expr::Literal(literal) => Ok(of_literal(literal)),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) if call.func_name == operators::OPT_SELECT => {
                let (Some(of), Some(Expr::Literal(LiteralValue::String(field)))) =
                    (call.args.first(), call.args.get(1).map(|field| &field.expr))
                else {
                    return Err("must name a field".to_owned());
                };
                let of = match self.kind(of)? {
                    Kind::Optional(of) => *of,
                    plain => plain,
                };
                Ok(Kind::Optional(Box::new(field_of(&of, field.inner())?)))
            }
            Expr::Call(call) => {
                let all = call.target.as_deref().into_iter().chain(&call.args);
                let given = all.map(|one| self.kind(one)).collect::<Result<Vec<_>, _>>()?;
                calls::result(&call.func_name, call.target.is_some(), &given)
            }
            Expr::List(list) if list.optional_indices.is_empty() => {
                let mut of = Kind::Any;
                for (index, element) in list.elements.iter().enumerate() {
                    let kind = self.kind(element)?;
                    // As lists of mixed kinds are: anything.
                    of = if index == 0 || of.fits(&kind) { of.or(kind) } else { Kind::Any };
                }
                Ok(Kind::List(Box::new(of)))
            }
            Expr::Map(map) => {
                let mut of = Kind::Any;
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return Err("must name an entry of a map".to_owned());
                    };
                    if entry.optional || !matches!(self.kind(&entry.key)?, Kind::Text | Kind::Any) {
                        return Err("the keys of maps are strings".to_owned());
                    }
                    let kind = self.kind(&entry.value)?;
                    of = if of.fits(&kind) { of.or(kind) } else { Kind::Any };
                }
                Ok(Kind::Map(Box::new(of)))
            }
            Expr::Comprehension(macro_) => self.each(macro_),
            Expr::List(_) => Err("optional elements are not available".to_owned()),
            Expr::Struct(of) => Err(format!("undeclared reference to '{}'", of.type_name)),
            Expr::Unspecified => Err("an expression is missing".to_owned()),
        }
    }

    fn name(&mut self, name: &str) -> Result<Kind<'s>, String> {
        self.looks_back |= name == "oldSelf";
        if let Some((_, kind)) = self.names.iter().rev().find(|(known, _)| known == name) {
            return Ok(kind.clone());
        }
        match name {
            "bool" | "bytes" | "double" | "int" | "list" | "map" | "null_type" | "string" | "uint" => {
                Ok(Kind::Type)
            }
            _ => Err(format!("undeclared reference to '{name}'")),
        }
    }

    fn select(&mut self, select: &SelectExpr) -> Result<Kind<'s>, String> {
        let of = self.kind(&select.operand)?;
        let field = field_of(&of, &select.field)?;
        Ok(if select.test { Kind::Bool } else { field })
    }

    fn each(&mut self, of: &ComprehensionExpr) -> Result<Kind<'s>, String> {
        if of.iter_var2.is_some() {
            return Err("macros with two variables are not available".to_owned());
        }
        let range = self.kind(&of.iter_range)?;
        let each = range.each().ok_or_else(|| {
            format!("expression of type '{range}' cannot be range of a comprehension (must be list, map, or dynamic)")
        })?;
        let so_far = self.kind(&of.accu_init)?;
        let outer = self.names.len();
        self.names.push((of.accu_var.clone(), so_far.clone()));
        self.kind(&of.loop_cond)?;
        self.names.push((of.iter_var.clone(), each));
        let step = self.kind(&of.loop_step)?;
        self.names.truncate(outer);
        self.names.push((of.accu_var.clone(), so_far.or(step)));
        let result = self.kind(&of.result);
        self.names.truncate(outer);
        result
    }
}

fn field_of<'s>(of: &Kind<'s>, field: &str) -> Result<Kind<'s>, String> {
    match of.field(field) {
        Some(field) => Ok(field),
        None if matches!(of, Kind::Object(..) | Kind::Metadata | Kind::Optional(_)) => {
            Err(format!("undefined field '{field}'"))
        }
        None => Err(format!("type '{of}' does not support field selection")),
    }
}

fn of_literal<'s>(literal: &LiteralValue) -> Kind<'s> {
    match literal {
        LiteralValue::Boolean(_) => Kind::Bool,
        LiteralValue::Bytes(_) => Kind::Bytes,
        LiteralValue::Double(_) => Kind::Double,
        LiteralValue::Int(_) => Kind::Int,
        LiteralValue::Null => Kind::Null,
        LiteralValue::String(_) => Kind::Text,
        LiteralValue::UInt(_) => Kind::Uint,
    }
}
