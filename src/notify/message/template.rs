//! A user's template, in Jinja's language as minijinja has it, bounded before it runs.
//!
//! minijinja counts instructions, not memory: `{% set a = a ~ a %}` thirty times is a gigabyte. So the only filters are
//! those listed here, there are no functions and no macros, and a template is refused at first sight when what it could
//! ever produce exceeds its budget: each expression's size is bounded from its parts, and counts once for each turn of
//! the loop that it stands in.

use std::collections::BTreeMap;
use std::io;

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};
use minijinja::machinery::{Span, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, filters};
use serde::Serialize;

use super::View;
use super::digest::MAX_ENTRIES;
use crate::notify::webhook::event::BODY;

/// What a template may cost.
#[derive(Clone, Copy)]
struct Bounds {
    /// All that it may ever produce on the way to its text, in bytes.
    budget: usize,
    /// Instructions that one rendering may take.
    fuel: u64,
    /// Length of its text, in bytes.
    output: usize,
}

/// Of a `TrackedField`'s template: a digest renders up to a hundred.
const MESSAGE: Bounds = Bounds { budget: 1024 * 1024, fuel: 10_000, output: 32 * 1024 };
/// Of a webhook's `body`: a request renders one.
const WHOLE_BODY: Bounds = Bounds { budget: 16 * 1024 * 1024, fuel: 100_000, output: BODY };
/// Length of a template, in bytes.
const SOURCE: usize = 16 * 1024;
/// Words and signs between one pair of braces, pairs of `{%`, and brackets in each other: the parser, the compiler and the
/// check below call themselves for each, and a stack that overflows ends the process.
const TOKENS: usize = 300;
const TAGS: usize = 100;
const BRACKETS: usize = 16;
/// What one variable holds at most, in bytes: a value's 1,024 bytes, a name, a number.
const VARIABLE: usize = 1536;
/// What one of `entries` holds at most.
const ENTRY: usize = 8 * 1024;
/// `text` at most: [`super::Limit::WEBHOOK`].
const TEXT: usize = 32 * 1024;
/// What filter `replace` gives at most.
const REPLACED: usize = 64 * 1024;

/// The variables of a `TrackedField`'s template.
const VARIABLES: [&str; 17] = [
    "action",
    "cluster",
    "cut",
    "field",
    "firstValue",
    "id",
    "kind",
    "merged",
    "missing",
    "name",
    "namespace",
    "previous",
    "previousCut",
    "time",
    "trackedField",
    "trackedFieldNamespace",
    "value",
];
/// The further variables of a webhook's `body`.
const BODY_VARIABLES: [&str; 2] = ["entries", "text"];

/// The filters, and by how much each can make its input longer.
const FILTERS: [(&str, usize); 16] = [
    ("abs", 1),
    ("capitalize", 3),
    ("count", 1),
    ("d", 1),
    ("default", 1),
    ("first", 1),
    ("float", 1),
    ("int", 1),
    ("last", 1),
    ("length", 1),
    ("lower", 3),
    ("replace", 1),
    ("tojson", 6),
    ("trim", 1),
    ("truncate", 1),
    ("upper", 3),
];
const TESTS: [&str; 6] = ["defined", "undefined", "none", "true", "false", "number"];

/// What a `TrackedField`'s template is to say is known at first sight: why it cannot be rendered, in words.
pub fn check_template(source: &str) -> Result<(), String> {
    Checker::check(source, &VARIABLES, MESSAGE)
}

/// The same for a webhook's `body`.
pub fn check_body(source: &str) -> Result<(), String> {
    Checker::check(source, &[&VARIABLES[..], &BODY_VARIABLES].concat(), WHOLE_BODY)
}

/// Renders a `TrackedField`'s template.
pub fn message(source: &str, view: &View) -> Result<String, String> {
    check_template(source)?;
    render(source, &shown(view), MESSAGE)
}

/// Renders a webhook's `body`. `view` is the first (or only) entry, `entries` are all of them, `text` is the whole
/// message.
pub fn body(source: &str, view: &View, entries: &[View], text: &str) -> Result<String, String> {
    #[derive(Serialize)]
    struct Variables<'a> {
        #[serde(flatten)]
        view: View,
        entries: Vec<View>,
        text: &'a str,
    }
    check_body(source)?;
    render(source, &Variables { view: shown(view), entries: entries.iter().map(shown).collect(), text }, WHOLE_BODY)
}

/// In a template `value` is a text: what the default message shows.
fn shown(view: &View) -> View {
    View { value: Some(view.shown().to_owned()), ..view.clone() }
}

fn render(source: &str, variables: &impl Serialize, bounds: Bounds) -> Result<String, String> {
    let mut environment = environment();
    environment.set_fuel(Some(bounds.fuel));
    let template = environment.template_from_str(source).map_err(|error| words(&error))?;
    let mut output = Bounded { bytes: Vec::new(), limit: bounds.output };
    match template.render_captured_to(Value::from(Serde(variables)), &mut output) {
        Ok(_) => String::from_utf8(output.bytes).map_err(|_| "it gives no text".into()),
        Err(error) if error.kind() == ErrorKind::WriteFailure => {
            Err(format!("it gives more than {} bytes", bounds.output))
        }
        Err(error) => Err(words(&error)),
    }
}

/// What a template can use. It has no loader, so it reaches no file.
fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_formatter(|output, state, value| {
        // What is not there is nothing, not the word "none".
        if value.is_none() { Ok(()) } else { minijinja::escape_formatter(output, state, value) }
    });
    environment.add_filter("abs", filters::abs);
    environment.add_filter("capitalize", filters::capitalize);
    environment.add_filter("count", filters::length);
    environment.add_filter("d", filters::default);
    environment.add_filter("default", filters::default);
    environment.add_filter("first", filters::first);
    environment.add_filter("float", filters::float);
    environment.add_filter("int", filters::int);
    environment.add_filter("last", filters::last);
    environment.add_filter("length", filters::length);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("replace", replace);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", |text: &str| text.trim().to_owned());
    environment.add_filter("truncate", truncate);
    environment.add_filter("upper", filters::upper);
    environment.add_test("defined", minijinja::tests::is_defined);
    environment.add_test("undefined", minijinja::tests::is_undefined);
    environment.add_test("none", minijinja::tests::is_none);
    environment.add_test("true", minijinja::tests::is_true);
    environment.add_test("false", minijinja::tests::is_false);
    environment.add_test("number", minijinja::tests::is_number);
    environment
}

/// JSON as it stands: minijinja's own filter escapes for HTML (`<` as `\u003c`), which readers of plain JSON also take,
/// but which makes a log hard to read.
fn to_json(value: &Value) -> Result<Value, Error> {
    let json =
        serde_json::to_string(value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(json))
}

fn replace(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let grown = text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len());
    if grown > REPLACED {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("replace gives more than {REPLACED} bytes")));
    }
    Ok(text.replace(from, to))
}

/// The first `length` characters, the last of them an ellipsis when something is left out.
fn truncate(text: &str, length: usize) -> String {
    if text.chars().nth(length).is_none() {
        return text.to_owned();
    }
    text.chars().take(length.saturating_sub(1)).chain((length > 0).then_some('…')).collect()
}

struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn words(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

/// Bounds how deep a template's syntax tree can be, before there is one.
fn check_depth(source: &str) -> Result<(), String> {
    let (mut tokens, mut tags, mut open) = (0, 0, 0_usize);
    for token in tokenize(source, false, SyntaxConfig::default()) {
        let (token, span) = token.map_err(|error| words(&error))?;
        tokens += 1;
        match token {
            Token::VariableStart => (tokens, open) = (0, 0),
            Token::BlockStart => (tokens, open, tags) = (0, 0, tags + 1),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => open += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => open = open.saturating_sub(1),
            _ => {}
        }
        if open > BRACKETS {
            return Err(format!("line {}: there are more than {BRACKETS} brackets in each other", span.start_line));
        }
        if tokens > TOKENS {
            return Err(format!("line {}: there are more than {TOKENS} words in one pair of braces", span.start_line));
        }
        if tags > TAGS {
            return Err(format!("line {}: there are more than {TAGS} pairs of {{% %}}", span.start_line));
        }
    }
    Ok(())
}

/// Bounds what a template can produce, from its syntax tree.
struct Checker<'a> {
    /// The size of each variable in sight, innermost scope last.
    scopes: Vec<BTreeMap<&'a str, usize>>,
    known: &'a [&'a str],
    /// How often the place being looked at can be run.
    turns: usize,
    spent: usize,
    budget: usize,
}

impl<'a> Checker<'a> {
    fn check(source: &str, known: &[&str], bounds: Bounds) -> Result<(), String> {
        if source.len() > SOURCE {
            return Err(format!("it is longer than {SOURCE} bytes"));
        }
        check_depth(source)?;
        let tree = parse(source, "template", SyntaxConfig::default()).map_err(|error| words(&error))?;
        let size = |name: &&str| match *name {
            "entries" => ENTRY * MAX_ENTRIES,
            "text" => TEXT,
            _ => VARIABLE,
        };
        let scope = known.iter().map(|name| (*name, size(name))).collect();
        let mut checker = Checker { scopes: vec![scope], known, turns: 1, spent: 0, budget: bounds.budget };
        checker.statement(&tree)
    }

    fn statements(&mut self, statements: &[Stmt<'a>]) -> Result<(), String> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn scoped(&mut self, statements: &[Stmt<'a>]) -> Result<(), String> {
        self.scopes.push(BTreeMap::new());
        let result = self.statements(statements);
        self.scopes.pop();
        result
    }

    fn statement(&mut self, statement: &Stmt<'a>) -> Result<(), String> {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitRaw(_) => Ok(()),
            Stmt::EmitExpr(emit) => {
                let size = self.size(&emit.expr)?;
                self.spend(size, emit.expr.span())
            }
            Stmt::IfCond(condition) => {
                self.size(&condition.expr)?;
                self.statements(&condition.true_body)?;
                self.statements(&condition.false_body)
            }
            Stmt::Set(set) => {
                let size = self.size(&set.expr)?;
                self.bind(&set.target, size)
            }
            Stmt::WithBlock(with) => {
                self.scopes.push(BTreeMap::new());
                for (target, value) in &with.assignments {
                    let size = self.size(value)?;
                    self.bind(target, size)?;
                }
                let result = self.statements(&with.body);
                self.scopes.pop();
                result
            }
            Stmt::ForLoop(repeat) => self.repeat(repeat),
            Stmt::SetBlock(block) => Err(refused("a set block", block.span())),
            Stmt::AutoEscape(block) => Err(refused("autoescape", block.span())),
            Stmt::FilterBlock(block) => Err(refused("a filter block", block.span())),
            Stmt::Do(block) => Err(refused("do", block.span())),
        }
    }

    fn repeat(&mut self, repeat: &minijinja::machinery::ast::ForLoop<'a>) -> Result<(), String> {
        if repeat.recursive {
            return Err(refused("a recursive loop", repeat.iter.span()));
        }
        // A list holds entries, or one item for each byte at most of what it was made from.
        let (item, turns) = match &repeat.iter {
            Expr::Var(name) if name.id == "entries" => (ENTRY, MAX_ENTRIES),
            Expr::List(list) => (self.size(&repeat.iter)?, list.items.len()),
            other => {
                let size = self.size(other)?;
                (size, size)
            }
        };
        let outer = self.turns;
        self.turns = outer.saturating_mul(turns.max(1));
        self.scopes.push(BTreeMap::from([("loop", VARIABLE)]));
        let result = self.bind(&repeat.target, item).and_then(|()| {
            if let Some(filter) = &repeat.filter_expr {
                self.size(filter)?;
            }
            // A turn that says nothing still takes its time.
            self.spend(16, repeat.iter.span())?;
            self.statements(&repeat.body)
        });
        self.scopes.pop();
        self.turns = outer;
        result?;
        self.scoped(&repeat.else_body)
    }

    fn bind(&mut self, target: &Expr<'a>, size: usize) -> Result<(), String> {
        match target {
            Expr::Var(name) => {
                if let Some(scope) = self.scopes.last_mut() {
                    // An `if` may leave either.
                    let bound = scope.entry(name.id).or_default();
                    *bound = size.max(*bound);
                }
                Ok(())
            }
            Expr::List(list) => list.items.iter().try_for_each(|item| self.bind(item, size)),
            Expr::Tuple(tuple) => tuple.items.iter().try_for_each(|item| self.bind(item, size)),
            other => Err(refused("an assignment to this", other.span())),
        }
    }

    fn spend(&mut self, size: usize, span: Span) -> Result<(), String> {
        self.spent = self.spent.saturating_add(size.saturating_mul(self.turns));
        if self.spent > self.budget {
            return Err(format!(
                "line {}: this can grow beyond all bounds; say less, or in fewer loops",
                span.start_line
            ));
        }
        Ok(())
    }

    /// The most bytes that `expression` can be. What is made anew is spent.
    fn size(&mut self, expression: &Expr<'a>) -> Result<usize, String> {
        /// A number or a truth, with room to spare: the longest a float is written is about 330 digits.
        const SCALAR: usize = 400;
        let span = expression.span();
        let size = match expression {
            Expr::Var(name) => return self.variable(name.id, span),
            Expr::Const(constant) => return Ok(constant.value.as_str().map_or(SCALAR, str::len)),
            Expr::GetAttr(get) => return self.size(&get.expr),
            Expr::GetItem(get) => {
                self.size(&get.subscript_expr)?;
                return self.size(&get.expr);
            }
            Expr::IfExpr(choice) => {
                self.size(&choice.test_expr)?;
                let other = choice.false_expr.as_ref().map(|other| self.size(other)).transpose()?;
                return Ok(self.size(&choice.true_expr)?.max(other.unwrap_or(0)));
            }
            Expr::Test(test) => {
                if !TESTS.contains(&test.name) {
                    return Err(unknown("test", test.name, &TESTS, span));
                }
                self.size(&test.expr)?;
                return self.arguments(&test.args).map(|_| SCALAR);
            }
            Expr::Compare(compare) => {
                self.size(&compare.expr)?;
                for op in &compare.ops {
                    self.size(&op.expr)?;
                }
                SCALAR
            }
            Expr::UnaryOp(op) => self.size(&op.expr)?.min(SCALAR),
            Expr::Slice(slice) => {
                for part in [&slice.start, &slice.stop, &slice.step].into_iter().flatten() {
                    self.size(part)?;
                }
                self.size(&slice.expr)?
            }
            Expr::BinOp(op) => {
                let (left, right) = (self.size(&op.left)?, self.size(&op.right)?);
                match op.op {
                    BinOpKind::Concat | BinOpKind::Add => left.saturating_add(right).saturating_add(SCALAR),
                    BinOpKind::ScAnd | BinOpKind::ScOr => return Ok(left.max(right)),
                    BinOpKind::Mul => return Err(refused("`*`", span)),
                    _ => SCALAR,
                }
            }
            Expr::List(list) => self.all(list.items.iter())?,
            Expr::Tuple(tuple) => self.all(tuple.items.iter())?,
            Expr::Map(map) => self.all(map.keys.iter().chain(&map.values))?,
            Expr::Call(_) => return Err(refused("a function or method", span)),
            Expr::Filter(filter) => {
                let Some((_, factor)) = FILTERS.iter().find(|(name, _)| *name == filter.name) else {
                    return Err(unknown("filter", filter.name, &FILTERS.map(|(name, _)| name), span));
                };
                let input = filter.expr.as_ref().map(|input| self.size(input)).transpose()?.unwrap_or(0);
                let arguments = self.arguments(&filter.args)?;
                match filter.name {
                    "replace" => REPLACED,
                    "default" | "d" => input.max(arguments),
                    _ => input.saturating_mul(*factor).saturating_add(SCALAR),
                }
            }
        };
        self.spend(size, span)?;
        Ok(size)
    }

    /// What holds all of `items`, with the marks that JSON or a list puts around each.
    fn all<'b>(&mut self, items: impl Iterator<Item = &'b Expr<'a>>) -> Result<usize, String>
    where
        'a: 'b,
    {
        let mut sum = 2_usize;
        for item in items {
            sum = sum.saturating_add(self.size(item)?).saturating_add(32);
        }
        Ok(sum)
    }

    fn arguments(&mut self, arguments: &[CallArg<'a>]) -> Result<usize, String> {
        let mut sum = 0_usize;
        for argument in arguments {
            match argument {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => sum = sum.saturating_add(self.size(value)?),
                CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                    return Err(refused("`*` before an argument", value.span()));
                }
            }
        }
        Ok(sum)
    }

    fn variable(&self, name: &str, span: Span) -> Result<usize, String> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied();
        found.ok_or_else(|| unknown("variable", name, self.known, span))
    }
}

fn refused(what: &str, span: Span) -> String {
    format!("line {}: {what} is not available in a template", span.start_line)
}

fn unknown(what: &str, name: &str, known: &[&str], span: Span) -> String {
    format!("line {}: there is no {what} `{name}`; there are {}", span.start_line, known.join(", "))
}

#[cfg(test)]
mod tests;
