//! Types of the operands of a comparison. CEL finds a string and a number unequal without an error, so a comparison of
//! the two would hide each message.

use std::fmt::Display;

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use qm_api::tracked_field::{BUILT_IN_KINDS, ChangeAction};
use qm_core::nearest::instead_of;

/// CEL reserves the word `namespace`, which Kubernetes escapes like this.
pub(super) const NAMESPACE: &str = "__namespace__";

/// Further kinds of Kubernetes, to find a literal that has the wrong case.
const KINDS: [&str; 15] = [
    "ConfigMap",
    "EndpointSlice",
    "Endpoints",
    "LimitRange",
    "Namespace",
    "NetworkPolicy",
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "ReplicaSet",
    "ResourceQuota",
    "ServiceAccount",
    "StorageClass",
];

/// Members of `changedBy`.
const CHANGED_BY: [&str; 4] = ["manager", "operation", "subresource", "time"];
/// Members of a version.
const VERSION: [&str; 4] = ["major", "minor", "patch", "pre"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Bool,
    List,
    Map,
    Number,
    Text,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::List => "list",
            Self::Map => "map",
            Self::Number => "number",
            Self::Text => "string",
        }
    }

    fn of_variable(name: &str) -> Option<Self> {
        match name {
            "action" | "field" | "kind" | "name" | NAMESPACE | "previous" | "value" => {
                Some(Self::Text)
            }
            "changedBy" | "context" => Some(Self::Map),
            "missing" => Some(Self::Bool),
            _ => None,
        }
    }

    /// Returns the type of a result, as far as it is known; a variable may be null as well.
    fn of(expression: &IdedExpr) -> Option<Self> {
        match &expression.expr {
            Expr::Literal(literal) => match literal {
                LiteralValue::String(_) => Some(Self::Text),
                LiteralValue::Boolean(_) => Some(Self::Bool),
                LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_) => {
                    Some(Self::Number)
                }
                LiteralValue::Null | LiteralValue::Bytes(_) => None,
            },
            Expr::Ident(name) => Self::of_variable(name),
            Expr::List(_) => Some(Self::List),
            Expr::Select(select) if select.test => Some(Self::Bool),
            Expr::Select(select) => match (&select.operand.expr, &*select.field) {
                (Expr::Ident(name), _) => {
                    (Self::of_variable(name)? == Self::Map).then_some(Self::Text)
                }
                (Expr::Call(call), part) if call.func_name == "version" => match part {
                    "pre" => Some(Self::Text),
                    _ => Some(Self::Number),
                },
                _ => None,
            },
            Expr::Call(call) => Self::of_call(call),
            _ => None,
        }
    }

    fn of_call(call: &CallExpr) -> Option<Self> {
        let argument = |at: usize| call.args.get(at).and_then(Self::of);
        match &*call.func_name {
            "-_" | "_-_" | "_*_" | "_/_" | "_%_" | "double" | "int" | "number" | "size" => {
                Some(Self::Number)
            }
            "string" | "tag" => Some(Self::Text),
            "version" => Some(Self::Map),
            "_+_" => argument(0).or_else(|| argument(1)),
            "_?_:_" => argument(1).filter(|it| argument(2) == Some(*it)),
            // A member of `context`, of `changedBy` or of a list.
            "_[_]" => argument(0)
                .filter(|it| *it == Self::Map)
                .map(|_| Self::Text),
            _ => Some(Self::Bool),
        }
    }
}

/// Checks that the result can be a bool.
pub(super) fn check_result(expression: &IdedExpr) -> Result<(), String> {
    match Type::of(expression) {
        Some(Type::Bool) | None => Ok(()),
        Some(other) => Err(no_bool(other.name())),
    }
}

/// Returns what to write instead of an expression whose result has another type.
pub(super) fn no_bool(type_: impl Display) -> String {
    format!("the result is {type_}, not bool: write a comparison, such as action == 'Updated'")
}

/// Returns the operator of a comparison, as a user writes it.
pub(super) fn comparison(function: &str) -> Option<&'static str> {
    let operators = ["==", "!=", "<", "<=", ">", ">="];
    let operator = |name: &str| operators.into_iter().find(|it| *it == name);
    match function {
        "@in" => Some("in"),
        _ => function
            .strip_prefix('_')?
            .strip_suffix('_')
            .and_then(operator),
    }
}

/// Checks that the operands of a comparison can be equal.
pub(super) fn check(operator: &str, left: &IdedExpr, right: &IdedExpr) -> Result<(), String> {
    if operator != "in" {
        return check_pair(operator, left, right);
    }
    if let Expr::List(list) = &right.expr {
        let mut items = list.elements.iter();
        return items.try_for_each(|item| check_pair(operator, left, item));
    }
    let (text, whole) = (label(left), label(right));
    match Type::of(right) {
        Some(Type::Text) => Err(format!(
            "{whole} is a string: write {whole}.contains({text})"
        )),
        Some(Type::Bool | Type::Number) => Err(format!("{whole} is not a list: write ==")),
        _ => Ok(()),
    }
}

fn check_pair(operator: &str, left: &IdedExpr, right: &IdedExpr) -> Result<(), String> {
    if matches!(operator, "==" | "!=" | "in") {
        check_word(left, right)?;
        check_word(right, left)?;
    }
    match (Type::of(left), Type::of(right)) {
        (Some(one), Some(other)) if one != other => {
            Err(mismatch(operator, (left, one), (right, other)))
        }
        _ => Ok(()),
    }
}

/// Checks a literal that `action`, `kind` or `changedBy.operation` is compared with.
fn check_word(variable: &IdedExpr, literal: &IdedExpr) -> Result<(), String> {
    let Expr::Literal(value) = &literal.expr else {
        return Ok(());
    };
    let name = match &variable.expr {
        Expr::Ident(name) => &**name,
        Expr::Select(select)
            if matches!(&select.operand.expr, Expr::Ident(name) if name == "changedBy")
                && select.field == "operation" =>
        {
            "changedBy.operation"
        }
        _ => return Ok(()),
    };
    let word = match value {
        LiteralValue::Null => return Ok(()),
        LiteralValue::String(word) => Some(word.inner()),
        _ => None,
    };
    let never = format!("{name} is never {}: write", label(literal));
    if name == "action" {
        use ChangeAction::{Created, Deleted, Updated};
        let is_action = |word| {
            [Created, Updated, Deleted]
                .map(ChangeAction::as_str)
                .contains(&word)
        };
        if !word.is_some_and(is_action) {
            return Err(format!("{never} '{Created}', '{Updated}' or '{Deleted}'"));
        }
    }
    let is_operation = |word| matches!(word, "Apply" | "Update");
    if name == "changedBy.operation" && !word.is_some_and(is_operation) {
        return Err(format!("{never} 'Apply' or 'Update'"));
    }
    if let ("kind", Some(word)) = (name, word) {
        let mut kinds = BUILT_IN_KINDS.iter().map(|it| it.kind).chain(KINDS);
        if let Some(kind) = kinds.find(|kind| kind.eq_ignore_ascii_case(word) && *kind != word) {
            return Err(format!("{never} '{kind}'"));
        }
    }
    Ok(())
}

/// Checks that a value can have a member of this name.
pub(super) fn check_member(whole: &IdedExpr, name: &str) -> Result<(), String> {
    let members: &[&str] = match &whole.expr {
        Expr::Ident(variable) if variable == "changedBy" => &CHANGED_BY,
        Expr::Call(call) if call.func_name == "version" => &VERSION,
        _ => return has_parts(whole, &[Type::Map]),
    };
    if members.contains(&name) {
        return Ok(());
    }
    let advice = instead_of(name, members);
    Err(format!("{} has no {name}: {advice}", label(whole)))
}

/// Checks that a value can have parts, which `[...]` reads.
pub(super) fn check_index(whole: &IdedExpr) -> Result<(), String> {
    has_parts(whole, &[Type::Map, Type::List])
}

/// Checks the first argument of a function, or the value whose method is called.
pub(super) fn check_argument(function: &str, argument: &IdedExpr) -> Result<(), String> {
    let types: &[Type] = match function {
        "endsWith" | "matches" | "startsWith" | "tag" | "version" => &[Type::Text],
        "number" => &[Type::Number, Type::Text],
        _ => return Ok(()),
    };
    let text = label(argument);
    match Type::of(argument).filter(|it| !types.contains(it)) {
        None => Ok(()),
        Some(Type::Map) => Err(of_map(&text)),
        Some(Type::List) => Err(format!("{text} is a list: {function} needs a string")),
        Some(other) => Err(format!(
            "{text} is a {}: {function} needs a string: write string({text})",
            other.name()
        )),
    }
}

fn has_parts(whole: &IdedExpr, types: &[Type]) -> Result<(), String> {
    match Type::of(whole).filter(|it| !types.contains(it)) {
        None => Ok(()),
        Some(type_) => {
            let whole = label(whole);
            let contains = match type_ {
                Type::Text => format!(", or write {whole}.contains('...')"),
                _ => String::new(),
            };
            let type_ = type_.name();
            Err(format!(
                "{whole} is a {type_} without parts: compare it whole{contains}"
            ))
        }
    }
}

/// Returns what to write instead of a comparison of two types.
fn mismatch(
    operator: &str,
    (left, left_type): (&IdedExpr, Type),
    (right, right_type): (&IdedExpr, Type),
) -> String {
    let (one, other) = (label(left), label(right));
    let number = |of: &str| format!("number({of})");
    match (left_type, right_type) {
        (Type::Map, _) => of_map(&one),
        (_, Type::Map) => of_map(&other),
        (_, Type::List) if operator == "==" => {
            format!("{one} is not a list: write {one} in {other}")
        }
        (_, Type::List) if operator == "!=" => {
            format!("{one} is not a list: write !({one} in {other})")
        }
        (Type::Text, Type::Number) => {
            let numbers = match operator {
                "in" => format!("{} in [...]", number(&one)),
                _ => format!("{} {operator} {other}", number(&one)),
            };
            of_text_and_number(operator, left, right, &numbers)
        }
        (Type::Number, Type::Text) => {
            let numbers = match operator {
                "in" => format!("{one} in [{}]", number(&other)),
                _ => format!("{one} {operator} {}", number(&other)),
            };
            of_text_and_number(operator, right, left, &numbers)
        }
        (Type::Text, Type::Bool) if is_literal(right) => {
            format!("{one} is a string: write '{other}'")
        }
        (Type::Bool, Type::Text) if is_literal(left) => {
            format!("{other} is a string: write '{one}'")
        }
        (Type::Bool, Type::Text) if is_literal(right) => {
            format!("{one} is a bool: write true or false, without quotes")
        }
        _ => format!(
            "{one} is a {} and {other} is a {}: compare values of one type",
            left_type.name(),
            right_type.name()
        ),
    }
}

fn of_map(map: &str) -> String {
    let member = match map {
        "context" => "NAME",
        "changedBy" => "manager",
        _ => "major",
    };
    format!("{map} has several members: use one, such as {map}.{member}")
}

/// Returns what to write instead of a comparison of a string with a number. `numbers` compares two numbers.
fn of_text_and_number(operator: &str, text: &IdedExpr, number: &IdedExpr, numbers: &str) -> String {
    let (one, other) = (label(text), label(number));
    match (is_literal(text), is_literal(number)) {
        (false, true) if !may_be_number(text) => format!("{one} is a string: write '{other}'"),
        (false, true) if matches!(operator, "==" | "!=" | "in") => {
            format!("{one} is a string: write '{other}', or {numbers}")
        }
        (false, true) => format!("{one} is a string: write {numbers}"),
        (true, false) => {
            let bare = one.trim_matches('\'');
            let bare = Some(bare).filter(|it| it.parse::<f64>().is_ok());
            let instead = bare.map_or_else(|| format!("number({one})"), str::to_owned);
            format!("{other} is a number: write {instead}")
        }
        _ => format!("{one} is a string and {other} is a number: write {numbers}"),
    }
}

/// Returns whether a string may be the text of a number.
fn may_be_number(text: &IdedExpr) -> bool {
    let is = |expression: &Expr, names: &[&str]| matches!(expression, Expr::Ident(name) if names.contains(&&**name));
    match &text.expr {
        Expr::Select(select) => !is(&select.operand.expr, &["changedBy"]),
        name => !is(name, &["action", "field", "kind", "name", NAMESPACE]),
    }
}

fn is_literal(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(_) => true,
        Expr::Call(call) => call.func_name == "-_" && call.args.iter().all(is_literal),
        _ => false,
    }
}

/// Returns a short form of an operand for a message.
fn label(expression: &IdedExpr) -> String {
    match &expression.expr {
        Expr::Literal(literal) => match literal {
            LiteralValue::Boolean(value) => value.inner().to_string(),
            LiteralValue::Int(value) => value.inner().to_string(),
            LiteralValue::UInt(value) => format!("{}u", value.inner()),
            LiteralValue::Double(value) => format!("{:?}", value.inner()),
            LiteralValue::String(value) => format!("'{}'", value.inner().escape_debug()),
            LiteralValue::Null | LiteralValue::Bytes(_) => "null".into(),
        },
        Expr::Ident(name) => name.clone(),
        Expr::Select(select) => {
            let member = format!("{}.{}", label(&select.operand), select.field);
            if select.test {
                format!("has({member})")
            } else {
                member
            }
        }
        Expr::List(_) => "[...]".into(),
        Expr::Call(call) => match (&*call.func_name, &call.target, &call.args[..]) {
            ("-_", _, [value]) => format!("-{}", label(value)),
            ("_[_]", _, [whole, member]) => format!("{}[{}]", label(whole), label(member)),
            (name, None, [argument]) if !name.contains('_') => {
                format!("{name}({})", label(argument))
            }
            (name, Some(target), _) => format!("{}.{name}(...)", label(target)),
            _ => "(...)".into(),
        },
        _ => "(...)".into(),
    }
}
