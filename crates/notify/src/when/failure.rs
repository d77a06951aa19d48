//! The part of an expression that has no result: the errors of the library have no position.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use cel::{Context, Value};

use super::source::Source;

/// Returns the position of the part of `expression` that fails in `context`, as the beginning of a message.
pub(super) fn position(expression: &IdedExpr, source: &str, context: &Context) -> String {
    let failed = innermost(expression, context);
    let mut tokens = Vec::new();
    collect(expression, &mut tokens);
    let Some(at) = tokens.iter().position(|(part, _)| *part == failed.id) else {
        return String::new();
    };
    let (before, token) = (&tokens[..at], tokens[at].1);
    let index = before.iter().filter(|(_, it)| *it == token).count();
    Source::new(source).of_token(token, index)
}

/// Returns the innermost part that fails.
fn innermost<'a>(expression: &'a IdedExpr, context: &Context) -> &'a IdedExpr {
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

/// Collects the parts that stand for a token, with that token, in the order of the text.
fn collect<'a>(expression: &'a IdedExpr, tokens: &mut Vec<(u64, &'a str)>) {
    match &expression.expr {
        Expr::Literal(LiteralValue::Int(number)) if *number.inner() < 0 => {
            tokens.push((expression.id, "-"));
        }
        Expr::Literal(LiteralValue::Double(number)) if number.inner().is_sign_negative() => {
            tokens.push((expression.id, "-"));
        }
        Expr::Ident(name) => tokens.push((expression.id, name)),
        Expr::Select(select) => {
            collect(&select.operand, tokens);
            tokens.push((expression.id, &select.field));
        }
        Expr::List(list) => {
            tokens.push((expression.id, "["));
            for element in &list.elements {
                collect(element, tokens);
            }
        }
        Expr::Call(call) => {
            let (token, operands) = token(call);
            let (before, after) = call.args.split_at(operands.min(call.args.len()));
            let before = call.target.as_deref().into_iter().chain(before);
            for operand in before {
                collect(operand, tokens);
            }
            tokens.push((expression.id, token));
            for operand in after {
                collect(operand, tokens);
            }
        }
        _ => {}
    }
}

/// Returns the token of a call, and the number of operands before it.
fn token(call: &CallExpr) -> (&str, usize) {
    match &*call.func_name {
        "_?_:_" => ("?", 1),
        "_[_]" => ("[", 1),
        "@in" => ("in", 1),
        name => match (name.strip_prefix('_'), name.strip_suffix('_')) {
            (Some(operator), Some(_)) => (operator.trim_end_matches('_'), 1),
            (None, Some(operator)) => (operator, 0),
            _ => (name, 0),
        },
    }
}
