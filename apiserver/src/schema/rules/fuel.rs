//! What rules cost: a rule is rewritten so that it pays for what it does, before it does it, and ends when it has
//! nothing left. The crate has no budget of its own.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{
    CelBool, CelBytes, CelInt, CelList, CelMap, CelString, DYN_TYPE, INT_TYPE, STRING_TYPE,
};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use regex::{Regex, RegexBuilder};

/// Steps that all rules together may take for one object.
const FULL: u64 = 2_000_000;
/// Steps that a regular expression costs.
const PATTERN: u64 = 5_000;
/// Bytes that a regular expression may take when compiled, and kept patterns.
const LARGEST_PATTERN: usize = 256 << 10;
const KEPT_PATTERNS: usize = 64;

const SIZED: &str = "@sized";
const RANGE: &str = "@range";
const MATCHES: &str = "@matches";

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static PATTERNS: RefCell<HashMap<String, Rc<Regex>>> = RefCell::default();
}

/// The functions there are.
pub(super) static LIBRARY: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(library()));

/// Fills the tank of this thread.
pub(super) fn fill() {
    LEFT.set(FULL);
}

/// Whether nothing is left.
pub(super) fn is_out() -> bool {
    LEFT.get() == 0
}

/// Pays; fails if that is too much.
pub(super) fn pay(steps: u64) -> Result<(), ExecutionError> {
    LEFT.set(LEFT.get().saturating_sub(steps));
    if is_out() {
        return Err(ExecutionError::function_error("rule", "the rules of this object cost too much"));
    }
    Ok(())
}

fn library() -> Env {
    let mut env = Env::stdlib();
    let added = add(&mut env);
    // A name that is there twice would be a mistake in this file, which the tests find.
    debug_assert!(added.is_ok(), "{added:?}");
    env
}

fn add(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_extension(cel::extensions::strings)?;
    env.add_overload(SIZED, SIZED, vec![DYN_TYPE], sized)?;
    env.add_overload(RANGE, RANGE, vec![DYN_TYPE, INT_TYPE], range)?;
    env.add_overload(MATCHES, MATCHES, vec![STRING_TYPE, STRING_TYPE], matches)
}

fn first<'b, 'v>(given: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    given.into_iter().next().ok_or_else(ExecutionError::missing_argument_or_target)
}

/// Pays for a value that is about to be copied or gone through.
fn sized<'b, 'v>(given: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let value = first(given)?;
    measure(value.as_ref())?;
    Ok(value)
}

/// Charges every iteration of a macro: each copies its element and takes the steps of the second argument.
fn range<'b, 'v>(given: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let steps = given.get(1).and_then(|steps| u64::try_from(*steps.downcast_ref::<CelInt>()?.inner()).ok());
    let value = first(given)?;
    measure(value.as_ref())?;
    let iterations = match (value.downcast_ref::<CelList>(), value.downcast_ref::<CelMap>()) {
        (Some(list), _) => list.inner().len(),
        (_, Some(map)) => map.inner().len(),
        _ => 1,
    };
    pay((iterations as u64).saturating_mul(steps.unwrap_or(u64::MAX)))?;
    Ok(value)
}

/// Pays for a value as large as it is: one step for each part and each eight bytes.
fn measure(value: &dyn Val) -> Result<(), ExecutionError> {
    pay(1)?;
    if let Some(text) = value.downcast_ref::<CelString>() {
        pay(text.inner().len() as u64 / 8)
    } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        pay(bytes.inner().len() as u64 / 8)
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        list.inner().iter().try_for_each(|value| measure(value.as_ref()))
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        map.inner().values().try_for_each(|value| measure(value.as_ref()))
    } else {
        Ok(())
    }
}

/// As `matches`, but with patterns of a limited size that are compiled once.
fn matches<'b, 'v>(given: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let [text, pattern] = given.as_slice() else { return Err(ExecutionError::missing_argument_or_target()) };
    let (Some(text), Some(pattern)) = (text.downcast_ref::<CelString>(), pattern.downcast_ref::<CelString>())
    else {
        return Err(ExecutionError::missing_argument_or_target());
    };
    let pattern = compiled(pattern.inner())?;
    Ok(CowVal::owned(CelBool::from(pattern.is_match(text.inner()))))
}

fn compiled(pattern: &str) -> Result<Rc<Regex>, ExecutionError> {
    if let Some(known) = PATTERNS.with_borrow(|known| known.get(pattern).cloned()) {
        return Ok(known);
    }
    pay(PATTERN)?;
    let made = RegexBuilder::new(pattern).size_limit(LARGEST_PATTERN).dfa_size_limit(LARGEST_PATTERN).build();
    let made = Rc::new(made.map_err(|error| ExecutionError::function_error("matches", error))?);
    PATTERNS.with_borrow_mut(|known| {
        if known.len() >= KEPT_PATTERNS {
            known.clear();
        }
        known.insert(pattern.to_owned(), Rc::clone(&made));
    });
    Ok(made)
}

/// Charges an expression, and returns how many steps one run of it takes.
pub(super) fn meter(expr: &mut IdedExpr) -> u64 {
    let below = match &mut expr.expr {
        Expr::Literal(_) | Expr::Ident(_) | Expr::Unspecified => 0,
        Expr::Select(select) => meter(&mut select.operand),
        Expr::Call(call) => of_call(call),
        Expr::List(list) => list.elements.iter_mut().map(|element| meter(element) + wrap(element)).sum(),
        Expr::Map(map) => map.entries.iter_mut().map(|entry| of_entry(&mut entry.expr)).sum(),
        Expr::Struct(of) => of.entries.iter_mut().map(|entry| of_entry(&mut entry.expr)).sum(),
        Expr::Comprehension(of) => {
            let each = meter(&mut of.loop_cond) + meter(&mut of.loop_step);
            let once = meter(&mut of.iter_range) + meter(&mut of.accu_init) + meter(&mut of.result);
            let steps = IdedExpr {
                id: 0,
                expr: Expr::Literal(LiteralValue::Int(CelInt::from(i64::try_from(each).unwrap_or(i64::MAX)))),
            };
            let whole = std::mem::take(&mut of.iter_range);
            of.iter_range = called(RANGE, vec![whole, steps]);
            once
        }
    };
    below + 1
}

fn of_entry(entry: &mut EntryExpr) -> u64 {
    match entry {
        EntryExpr::StructField(field) => meter(&mut field.value) + wrap(&mut field.value),
        EntryExpr::MapEntry(entry) => {
            meter(&mut entry.key) + wrap(&mut entry.key) + meter(&mut entry.value) + wrap(&mut entry.value)
        }
    }
}

fn of_call(call: &mut CallExpr) -> u64 {
    let mut steps: u64 = call.target.as_deref_mut().into_iter().chain(&mut call.args).map(meter).sum();
    let free = [
        operators::LOGICAL_AND,
        operators::LOGICAL_OR,
        operators::LOGICAL_NOT,
        operators::NOT_STRICTLY_FALSE,
        operators::CONDITIONAL,
        operators::INDEX,
        operators::OPT_INDEX,
        operators::OPT_SELECT,
    ];
    // What is collected by a macro is paid for by the element.
    let collects = call.func_name == operators::ADD
        && matches!(call.args.first().map(|first| &first.expr), Some(Expr::Ident(name)) if name.starts_with('@'));
    if !free.contains(&call.func_name.as_str()) && !collects {
        steps += call.target.as_deref_mut().into_iter().chain(&mut call.args).map(wrap).sum::<u64>();
    }
    if call.func_name == "matches" {
        call.args.splice(0..0, call.target.take().map(|target| *target));
        MATCHES.clone_into(&mut call.func_name);
    }
    steps
}

/// Makes a value pay for its size.
fn wrap(expr: &mut IdedExpr) -> u64 {
    if matches!(expr.expr, Expr::Literal(_)) {
        return 0;
    }
    let whole = std::mem::take(expr);
    *expr = called(SIZED, vec![whole]);
    1
}

fn called(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id: 0, expr: Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }) }
}
