//! Position of a part of an expression: the parts of a parsed expression have none.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};

use super::source::Source;

/// Returns the position of a part of the expression `whole`, as the beginning of a message.
pub(super) fn of(part: &IdedExpr, whole: &IdedExpr, source: &Source) -> String {
    let mut tokens = Vec::new();
    collect(whole, &mut tokens);
    let Some(at) = tokens.iter().position(|(id, _)| *id == part.id) else {
        return String::new();
    };
    let (before, token) = (&tokens[..at], tokens[at].1);
    let index = before.iter().filter(|(_, it)| *it == token).count();
    source.of_token(token, index)
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
