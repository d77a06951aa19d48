//! `spec.when`: a CEL expression that decides whether an entry is sent.
//!
//! The expression has no loops and no clock, so each of its nodes runs once: evaluating costs less than rendering a
//! message. An expression that fails sends the message.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::common::ast::{Expr, IdedExpr, LiteralValue};
use cel::extractors::This;
use cel::parser::{ParseError, PrattParser};
use cel::{Context, Env, ExecutionError, Value};
use qm_api::tracked_field::{ChangeAction, Entry, KEPT_BYTES, Subject};
use qm_core::nearest::{instead_of, nearest};
use regex_lite::{Regex, RegexBuilder};

use self::functions::{NO_VALUE, argument, map, number, tag, text, version};
use self::source::Source;
use self::types::NAMESPACE;
use crate::without_panic::without_panic;

mod failure;
mod functions;
mod position;
mod source;
mod types;

/// Maximum length of an expression, in characters. The CRD has the same.
const MAX_LENGTH: usize = 512;
/// Maximum depth of an expression: the parser and the interpreter recurse.
const MAX_DEPTH: u16 = 32;
/// Maximum number of nodes of an expression.
const MAX_NODES: usize = 128;
/// Maximum size of the compiled regular expressions of an expression, in bytes. The calls of `matches` share it, because
/// the time of a call grows with this size and that of the text: all together take some 20 ms in the worst case.
const MAX_REGEXES: usize = 64 * 1024;
/// Maximum size of a text that a regular expression is applied to, in bytes: operators can join many values.
const MAX_MATCHED: usize = KEPT_BYTES;

/// Variables of an expression, named as in an event's data.
const VARIABLES: [&str; 10] = [
    NAMESPACE,
    "action",
    "changedBy",
    "context",
    "field",
    "kind",
    "missing",
    "name",
    "previous",
    "value",
];
const FUNCTIONS: [&str; 11] = [
    "contains",
    "double",
    "endsWith",
    "int",
    "matches",
    "number",
    "size",
    "startsWith",
    "string",
    "tag",
    "version",
];
/// Names that the parser gives to operators.
const OPERATORS: [&str; 18] = [
    "!_", "-_", "@in", "_!=_", "_%_", "_&&_", "_*_", "_+_", "_-_", "_/_", "_<=_", "_<_", "_==_",
    "_>=_", "_>_", "_?_:_", "_[_]", "_||_",
];

/// A checked expression.
#[derive(Debug)]
pub struct When {
    source: Box<str>,
    expression: IdedExpr,
    /// Regular expressions of `matches` by their text.
    regexes: Arc<HashMap<String, Regex>>,
    /// Variables that the expression reads.
    variables: Vec<&'static str>,
}

impl When {
    /// Parses and checks an expression.
    ///
    /// # Errors
    /// Returns the position, the problem, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.chars().count() > MAX_LENGTH {
            return Err(format!(
                "the expression is longer than {MAX_LENGTH} characters: shorten it"
            ));
        }
        let parser = PrattParser::new()
            .max_recursion_depth(MAX_DEPTH)
            .max_expression_node_count(MAX_NODES)
            .error_reporting_limit(1)
            .enable_optional_syntax(false);
        let tree = without_panic("expression", || parser.parse(text))?;
        let source = Source::new(text);
        let expression = tree.map_err(|errors| {
            let is_deep = |error: &ParseError| error.msg.contains("recursion limit");
            let errors = errors.errors;
            let error = errors.iter().find(|error| error.pos.0 > 0);
            let error = error.filter(|_| !errors.iter().any(is_deep));
            error.map_or_else(too_large, |error| {
                let (line, column) = error.pos;
                let hint = source.hint(&error.msg, line, column);
                let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
                format!("line {line}, column {column}: {}{hint}", error.msg)
            })
        })?;
        let mut check = SyntaxCheck {
            whole: &expression,
            source,
            nodes: 0,
            patterns: Vec::new(),
            variables: Vec::new(),
        };
        check.expression(&expression, 0)?;
        let SyntaxCheck {
            patterns,
            variables,
            ..
        } = check;
        types::check_result(&expression)?;
        let regexes = compiled(&patterns)?;
        Ok(Self {
            source: text.into(),
            expression,
            regexes: Arc::new(regexes),
            variables,
        })
    }

    /// Returns whether the entry is sent. `previous` is the entry with the previous value.
    ///
    /// # Errors
    /// Returns why the expression has no result for this entry.
    pub fn evaluate(&self, entry: &Entry, previous: Option<&Entry>) -> Result<bool, String> {
        static ENVIRONMENT: LazyLock<Arc<Env>> =
            LazyLock::new(|| Arc::new(Env::default().with_stdlib()));
        let result = without_panic("expression", || {
            let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
            let regexes = Arc::clone(&self.regexes);
            let matches = move |This(text): This<Value>, pattern: Arc<String>| {
                let text = argument("matches", &text)?;
                if text.len() > MAX_MATCHED {
                    let problem =
                        format!("the string is longer than {MAX_MATCHED} bytes: join fewer values");
                    return Err(ExecutionError::function_error("matches", problem));
                }
                Ok(regexes.get(&*pattern).is_some_and(|it| it.is_match(text)))
            };
            context
                .add_function("matches", matches)
                .and_then(|()| context.add_function("number", number))
                .and_then(|()| context.add_function("tag", tag))
                .and_then(|()| context.add_function("version", version))
                .map_err(|error| error.to_string())?;
            let mut nulls = Vec::new();
            for name in &self.variables {
                let value = variable(name, entry, previous);
                if matches!(value, Value::Null) {
                    nulls.push(*name);
                }
                context.add_variable_from_value(*name, value);
            }
            Value::resolve(&self.expression, &context).map_err(|error| {
                let failed = failure::innermost(&self.expression, &context);
                let position = position::of(failed, &self.expression, &Source::new(&self.source));
                format!("{position}{}", explain(&error, &nulls))
            })
        })??;
        match result {
            Value::Bool(sends) => Ok(sends),
            other => Err(types::no_bool(other.type_of())),
        }
    }
}

/// Compiles the regular expressions of all calls.
fn compiled(patterns: &[String]) -> Result<HashMap<String, Regex>, String> {
    let limit = MAX_REGEXES / patterns.len().max(1);
    let compiled = patterns.iter().map(|pattern| {
        let regex = RegexBuilder::new(pattern).size_limit(limit).build();
        let regex =
            regex.map_err(|error| format!("the regular expression {pattern:?}: {error}"))?;
        Ok((pattern.clone(), regex))
    });
    compiled.collect()
}

fn too_large() -> String {
    format!("the expression has more than {MAX_NODES} parts or {MAX_DEPTH} levels: simplify it")
}

/// Returns the error without the values, which can be long. `nulls` are variables of the expression that are null.
fn explain(error: &ExecutionError, nulls: &[&str]) -> String {
    let of_null = match error {
        _ if nulls.is_empty() => None,
        ExecutionError::NoSuchOverload(overload) => Some(overload.to_string()),
        ExecutionError::UnexpectedType { got, want } => {
            Some(format!("found {got} where {want} is needed"))
        }
        ExecutionError::FunctionError { function, message } if message == NO_VALUE => {
            Some(function.clone())
        }
        _ => None,
    };
    if let Some(problem) = of_null {
        let verb = if nulls.len() == 1 { "is" } else { "are" };
        let tests: Vec<String> = nulls.iter().map(|it| format!("{it} != null")).collect();
        let (nulls, tests) = (nulls.join(" and "), tests.join(" && "));
        return format!("{problem}: {nulls} {verb} null: write {tests} && ... before it");
    }
    match error {
        ExecutionError::NoSuchKey(key) => {
            format!(
                "there is no {key}: write has(...) before it, such as has(context.{key}) && ..."
            )
        }
        ExecutionError::NoSuchOverload(overload) => {
            format!("{overload}: convert the operands to one type, such as number(value) > 3.0")
        }
        ExecutionError::FunctionError { function, message } => format!("{function}: {message}"),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "division by zero".into()
        }
        ExecutionError::Overflow(..) => "the number is too large".into(),
        ExecutionError::InvalidArgumentCount { expected, actual } => {
            format!("a function got {actual} arguments and needs {expected}")
        }
        ExecutionError::UnexpectedType { got, want } => {
            format!("found {got} where {want} is needed")
        }
        _ => {
            "the operands do not fit: compare strings with strings and numbers with numbers".into()
        }
    }
}

/// Returns the value of a variable.
fn variable(name: &str, entry: &Entry, previous: Option<&Entry>) -> Value {
    let optional = |part: Option<&str>| part.map_or(Value::Null, text);
    let of_subject = |part: fn(&Subject) -> &str| {
        let subject = entry.subject.as_ref();
        text(subject.map(part).unwrap_or_default())
    };
    match name {
        "action" => text(entry.action.as_str()),
        "changedBy" => entry.changed_by.as_deref().map_or(Value::Null, |it| {
            let time = it.time.as_ref().map(|time| time.0.to_string());
            map([
                ("manager", text(&it.manager)),
                ("operation", optional(it.operation.as_deref())),
                ("subresource", optional(it.subresource.as_deref())),
                ("time", optional(time.as_deref())),
            ])
        }),
        "context" => {
            let context = entry.context.iter();
            map(context.map(|(name, value)| (name.as_str(), text(value))))
        }
        "field" => of_subject(Subject::field),
        "kind" => of_subject(Subject::kind),
        "missing" => Value::Bool(entry.missing),
        "name" => of_subject(Subject::name),
        NAMESPACE => of_subject(Subject::namespace),
        "previous" => {
            // A deleted resource had no value.
            let previous = previous.filter(|previous| previous.action != ChangeAction::Deleted);
            optional(previous.and_then(|previous| previous.value.as_deref()))
        }
        "value" => optional(entry.value.as_deref()),
        _ => Value::Null,
    }
}

/// Checks that an expression is in the part of CEL that is available.
struct SyntaxCheck<'a> {
    whole: &'a IdedExpr,
    source: Source<'a>,
    nodes: usize,
    /// Regular expressions of all calls of `matches`.
    patterns: Vec<String>,
    /// Variables that the expression reads.
    variables: Vec<&'static str>,
}

impl SyntaxCheck<'_> {
    fn expression(&mut self, expression: &IdedExpr, depth: u16) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > MAX_NODES || depth > MAX_DEPTH {
            return Err(too_large());
        }
        match &expression.expr {
            Expr::Literal(LiteralValue::Bytes(_)) => {
                Err("bytes are not available: write a string".into())
            }
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.variable(name, expression),
            Expr::Select(select) => {
                self.expression(&select.operand, depth + 1)?;
                types::check_member(&select.operand, &select.field)
                    .map_err(|problem| self.at(expression, &problem))
            }
            Expr::List(list) => self.all(&list.elements, depth),
            Expr::Call(call) => {
                let name = &*call.func_name;
                if !OPERATORS.contains(&name) && !FUNCTIONS.contains(&name) {
                    return Err(self.at(expression, &unknown_function(name)));
                }
                if call.func_name == "matches" {
                    self.pattern(call.args.last())?;
                }
                if let Some(target) = &call.target {
                    self.expression(target, depth + 1)?;
                }
                self.all(&call.args, depth)?;
                let checked = match (types::comparison(name), &call.args[..]) {
                    (Some(operator), [left, right]) => types::check(operator, left, right),
                    (None, [whole, _]) if name == "_[_]" => types::check_index(whole),
                    (None, args) => {
                        let first = call.target.as_deref().or(args.first());
                        first.map_or(Ok(()), |first| types::check_argument(name, first))
                    }
                    _ => Ok(()),
                };
                checked.map_err(|problem| self.at(expression, &problem))
            }
            Expr::Comprehension(_) => {
                Err("all, exists, exists_one, filter and map are not available: write in, contains or matches".into())
            }
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
                Err("maps and messages are not available: write a list, such as value in ['1', '2']".into())
            }
        }
    }

    fn all(&mut self, expressions: &[IdedExpr], depth: u16) -> Result<(), String> {
        expressions
            .iter()
            .try_for_each(|expression| self.expression(expression, depth + 1))
    }

    /// Returns the message of a problem with this part.
    fn at(&self, part: &IdedExpr, problem: &str) -> String {
        let position = position::of(part, self.whole, &self.source);
        format!("{position}{problem}")
    }

    fn variable(&mut self, name: &str, part: &IdedExpr) -> Result<(), String> {
        let Some(variable) = VARIABLES.into_iter().find(|it| *it == name) else {
            let advice = instead_of_variable(name);
            return Err(self.at(part, &format!("unknown variable {name}: {advice}")));
        };
        if !self.variables.contains(&variable) {
            self.variables.push(variable);
        }
        Ok(())
    }

    fn pattern(&mut self, argument: Option<&IdedExpr>) -> Result<(), String> {
        let Some(Expr::Literal(LiteralValue::String(pattern))) = argument.map(|it| &it.expr) else {
            return Err(
                "matches needs its regular expression as a string, such as value.matches('^v1[.]')"
                    .into(),
            );
        };
        self.patterns.push(pattern.inner().to_owned());
        Ok(())
    }
}

fn unknown_function(name: &str) -> String {
    let advice = if name.eq_ignore_ascii_case("not") {
        "write !".into()
    } else {
        instead_of(name, &FUNCTIONS)
    };
    format!("unknown function {name}: {advice}")
}

/// Returns what to write instead of an unknown variable.
fn instead_of_variable(name: &str) -> String {
    let constant = match &*name.to_ascii_lowercase() {
        "true" => Some("true"),
        "false" => Some("false"),
        "none" | "nil" | "null" => Some("null"),
        _ => None,
    };
    if let Some(constant) = constant {
        return format!("write {constant}");
    }
    match nearest(name, VARIABLES.into_iter()) {
        Some(nearest) if nearest.eq_ignore_ascii_case(name) => format!("write {nearest}"),
        _ if name.starts_with(|char: char| char.is_ascii_uppercase()) => {
            format!("quote it: '{name}'")
        }
        Some(_) => instead_of(name, &VARIABLES),
        None => format!("{}, or quote it: '{name}'", instead_of(name, &VARIABLES)),
    }
}

#[cfg(test)]
mod tests;
