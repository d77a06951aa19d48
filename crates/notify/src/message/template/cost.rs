//! Maximum cost of a template, computed from its syntax tree before rendering.
//!
//! minijinja counts instructions, not memory: thirty times `{% set a = a ~ a %}` makes a gigabyte. So the check
//! computes an upper bound of each expression's size, multiplies it by the number of iterations of its loops, and
//! rejects a template whose sum exceeds the budget.

use std::collections::BTreeMap;

use minijinja::Error;
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, ForLoop, Stmt};
use minijinja::machinery::{Span, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use qm_api::common::MAX_TEMPLATE;

use crate::message::{MAX_ENTRIES, TextLimit};
use crate::without_panic::without_panic;

/// Maximum length of a template, in bytes. The CRDs limit characters, each of up to 4 bytes in UTF-8.
pub(super) const MAX_SOURCE: usize = 4 * MAX_TEMPLATE;
/// Maximum numbers of tokens in one pair of braces, of `{%` tags, and of nested brackets. The parser, the compiler and
/// this check recurse for each, and a stack overflow would abort the process.
const MAX_TOKENS: usize = 300;
const MAX_TAGS: usize = 100;
const MAX_BRACKETS: usize = 16;
/// Maximum size of one variable, in bytes: a value's 1,024 bytes, a name, a number.
const VARIABLE: usize = 1536;
/// Maximum size of `context`, in bytes: five names and values.
const CONTEXT: usize = 2 * 1024;
/// Maximum size of one of `entries`, in bytes.
const ENTRY: usize = 8 * 1024;
/// Maximum size of `text`, in bytes: [`TextLimit::WEBHOOK`].
const TEXT: usize = TextLimit::WEBHOOK.max();

/// Limits of a template.
#[derive(Clone, Copy)]
pub(crate) struct TemplateLimits {
    /// Maximum size of all intermediate and final values, in bytes.
    pub(crate) budget: usize,
    /// Maximum number of instructions of one rendering.
    pub(crate) fuel: u64,
    /// Maximum length of the text, in bytes.
    pub(crate) output: usize,
}

/// Maximum length of the result of filter `replace`, in bytes.
pub(super) const MAX_REPLACED: usize = 64 * 1024;

/// Filters, with the maximum factor by which each lengthens its input.
const FILTERS: [(&str, usize); 17] = [
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
    ("urlencode", 3),
];
const TESTS: [&str; 6] = ["defined", "undefined", "none", "true", "false", "number"];

/// Checks `source` with the variables in `known`.
pub(crate) fn check(source: &str, known: &[&str], limits: TemplateLimits) -> Result<(), String> {
    if source.len() > MAX_SOURCE {
        return Err(format!(
            "the template is longer than {MAX_SOURCE} bytes: shorten it"
        ));
    }
    let tree = without_panic("template", || {
        check_depth(source)?;
        parse(source, "template", SyntaxConfig::default()).map_err(|error| error_message(&error))
    })??;
    let size = |name: &&str| match *name {
        "entries" => ENTRY * MAX_ENTRIES,
        "text" => TEXT,
        "context" => CONTEXT,
        _ => VARIABLE,
    };
    let scope = known.iter().map(|name| (*name, size(name))).collect();
    let mut checker = Checker {
        scopes: vec![scope],
        known,
        iterations: 1,
        spent: 0,
        budget: limits.budget,
    };
    checker.statement(&tree)
}

/// Checks the depth of a template's syntax tree before parsing.
fn check_depth(source: &str) -> Result<(), String> {
    let (mut tokens, mut tags, mut open) = (0, 0, 0_usize);
    for token in tokenize(source, false, SyntaxConfig::default()) {
        let (token, span) = token.map_err(|error| error_message(&error))?;
        tokens += 1;
        match token {
            Token::VariableStart => (tokens, open) = (0, 0),
            Token::BlockStart => (tokens, open, tags) = (0, 0, tags + 1),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => open += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                open = open.saturating_sub(1);
            }
            _ => {}
        }
        if open > MAX_BRACKETS {
            return Err(format!(
                "line {}: there are more than {MAX_BRACKETS} nested brackets",
                span.start_line
            ));
        }
        if tokens > MAX_TOKENS {
            return Err(format!(
                "line {}: more than {MAX_TOKENS} tokens between one pair of braces; split the expression with {{% set %}}",
                span.start_line
            ));
        }
        if tags > MAX_TAGS {
            return Err(format!(
                "line {}: there are more than {MAX_TAGS} pairs of {{% %}}",
                span.start_line
            ));
        }
    }
    Ok(())
}

/// Checker of a template's maximum output, from its syntax tree.
struct Checker<'a> {
    /// Maximum size of each visible variable, innermost scope last.
    scopes: Vec<BTreeMap<&'a str, usize>>,
    known: &'a [&'a str],
    /// Maximum number of executions of the current statement.
    iterations: usize,
    spent: usize,
    budget: usize,
}

impl<'a> Checker<'a> {
    fn statements(&mut self, statements: &[Stmt<'a>]) -> Result<(), String> {
        statements
            .iter()
            .try_for_each(|statement| self.statement(statement))
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
            Stmt::SetBlock(block) => Err(not_available("a set block", block.span())),
            Stmt::AutoEscape(block) => Err(not_available("autoescape", block.span())),
            Stmt::FilterBlock(block) => Err(not_available("a filter block", block.span())),
            Stmt::Do(block) => Err(not_available("do", block.span())),
        }
    }

    fn repeat(&mut self, repeat: &ForLoop<'a>) -> Result<(), String> {
        if repeat.recursive {
            return Err(not_available("a recursive loop", repeat.iter.span()));
        }
        // A list has entries, or at most one item per byte of its source.
        let (item, iterations) = match &repeat.iter {
            Expr::Var(name) if name.id == "entries" => (ENTRY, MAX_ENTRIES),
            Expr::List(list) => (self.size(&repeat.iter)?, list.items.len()),
            other => {
                let size = self.size(other)?;
                (size, size)
            }
        };
        let outer = self.iterations;
        self.iterations = outer.saturating_mul(iterations.max(1));
        self.scopes.push(BTreeMap::from([("loop", VARIABLE)]));
        let result = self.bind(&repeat.target, item).and_then(|()| {
            if let Some(filter) = &repeat.filter_expr {
                self.size(filter)?;
            }
            // An iteration without output still takes time.
            self.spend(16, repeat.iter.span())?;
            self.statements(&repeat.body)
        });
        self.scopes.pop();
        self.iterations = outer;
        result?;
        self.scoped(&repeat.else_body)
    }

    fn bind(&mut self, target: &Expr<'a>, size: usize) -> Result<(), String> {
        match target {
            Expr::Var(name) => {
                if let Some(scope) = self.scopes.last_mut() {
                    // Either branch of an `if` may have set the variable.
                    let bound = scope.entry(name.id).or_default();
                    *bound = size.max(*bound);
                }
                Ok(())
            }
            Expr::List(list) => list.items.iter().try_for_each(|item| self.bind(item, size)),
            Expr::Tuple(tuple) => tuple
                .items
                .iter()
                .try_for_each(|item| self.bind(item, size)),
            other => Err(not_available("an assignment to this", other.span())),
        }
    }

    fn spend(&mut self, size: usize, span: Span) -> Result<(), String> {
        self.spent = self
            .spent
            .saturating_add(size.saturating_mul(self.iterations));
        if self.spent > self.budget {
            return Err(format!(
                "line {}: the result could exceed the memory limit; shorten the template, or use fewer loops",
                span.start_line
            ));
        }
        Ok(())
    }

    /// Returns the maximum size of `expression` in bytes. New values count against the budget.
    fn size(&mut self, expression: &Expr<'a>) -> Result<usize, String> {
        /// Maximum size of a number or a boolean, in bytes: the longest float has about 330 digits.
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
                let other = choice
                    .false_expr
                    .as_ref()
                    .map(|other| self.size(other))
                    .transpose()?;
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
                for part in [&slice.start, &slice.stop, &slice.step]
                    .into_iter()
                    .flatten()
                {
                    self.size(part)?;
                }
                self.size(&slice.expr)?
            }
            Expr::BinOp(op) => {
                let (left, right) = (self.size(&op.left)?, self.size(&op.right)?);
                match op.op {
                    BinOpKind::Concat | BinOpKind::Add => {
                        left.saturating_add(right).saturating_add(SCALAR)
                    }
                    BinOpKind::ScAnd | BinOpKind::ScOr => return Ok(left.max(right)),
                    BinOpKind::Mul => return Err(not_available("`*`", span)),
                    _ => SCALAR,
                }
            }
            Expr::List(list) => self.all(list.items.iter())?,
            Expr::Tuple(tuple) => self.all(tuple.items.iter())?,
            Expr::Map(map) => self.all(map.keys.iter().chain(&map.values))?,
            Expr::Call(_) => return Err(not_available("a function or method", span)),
            Expr::Filter(filter) => {
                let Some((_, factor)) = FILTERS.iter().find(|(name, _)| *name == filter.name)
                else {
                    return Err(unknown(
                        "filter",
                        filter.name,
                        &FILTERS.map(|(name, _)| name),
                        span,
                    ));
                };
                let input = filter
                    .expr
                    .as_ref()
                    .map(|input| self.size(input))
                    .transpose()?
                    .unwrap_or(0);
                let arguments = self.arguments(&filter.args)?;
                match filter.name {
                    "replace" => MAX_REPLACED,
                    "default" | "d" => input.max(arguments),
                    _ => input.saturating_mul(*factor).saturating_add(SCALAR),
                }
            }
        };
        self.spend(size, span)?;
        Ok(size)
    }

    /// Returns the maximum size of a list of `items`, with the punctuation of JSON or a list around each.
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
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => {
                    sum = sum.saturating_add(self.size(value)?);
                }
                CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                    return Err(not_available("`*` before an argument", value.span()));
                }
            }
        }
        Ok(sum)
    }

    fn variable(&self, name: &str, span: Span) -> Result<usize, String> {
        let found = self
            .scopes
            .iter()
            .rev()
            .find_map(|scope| scope.get(name))
            .copied();
        found.ok_or_else(|| unknown("variable", name, self.known, span))
    }
}

fn not_available(what: &str, span: Span) -> String {
    format!(
        "line {}: {what} is not available in a template",
        span.start_line
    )
}

fn unknown(what: &str, name: &str, known: &[&str], span: Span) -> String {
    format!(
        "line {}: there is no {what} `{name}`; there are {}",
        span.start_line,
        known.join(", ")
    )
}

/// Returns the message of an error of minijinja, with the line.
pub(super) fn error_message(error: &Error) -> String {
    let what = error.detail().map_or_else(
        || error.kind().to_string(),
        |detail| format!("{}: {detail}", error.kind()),
    );
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}
