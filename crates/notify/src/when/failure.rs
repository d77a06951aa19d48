//! The part of an expression that has no result: the errors of the library do not say which.

use cel::common::ast::{Expr, IdedExpr};
use cel::{Context, Value};

/// Returns the innermost part of an expression that fails in `context`.
pub(super) fn innermost<'a>(expression: &'a IdedExpr, context: &Context) -> &'a IdedExpr {
    let fails = |part: &&IdedExpr| Value::resolve(part, context).is_err();
    let part = match &expression.expr {
        Expr::Select(select) => Some(&*select.operand).filter(fails),
        Expr::List(list) => list.elements.iter().find(fails),
        Expr::Call(call) => match (&*call.func_name, &call.args[..]) {
            ("_?_:_", [condition, yes, no]) => match Value::resolve(condition, context) {
                Ok(Value::Bool(true)) => Some(yes),
                Ok(Value::Bool(false)) => Some(no),
                Ok(_) => None,
                Err(_) => Some(condition),
            },
            (_, args) => call.target.as_deref().into_iter().chain(args).find(fails),
        },
        _ => None,
    };
    part.map_or(expression, |part| innermost(part, context))
}
