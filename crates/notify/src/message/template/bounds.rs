//! What a template could ever cost, from its syntax tree, before it runs.
//!
//! minijinja counts instructions, not memory: `{% set a = a ~ a %}` thirty times is a gigabyte. So each expression's size
//! is bounded from its parts, counts once for each turn of the loop that it stands in, and a template is refused at first
//! sight when the sum exceeds its budget.

use std::collections::BTreeMap;

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, ForLoop, Stmt};
use minijinja::machinery::{Span, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::{Bounds, FILTERS, REPLACED, TESTS, words};
use crate::message::Limit;
use crate::message::MAX_ENTRIES;

/// Length of a template, in bytes.
pub(super) const SOURCE: usize = 16 * 1024;
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
const TEXT: usize = Limit::WEBHOOK.max();

/// Why `source` cannot be rendered with the variables in `known`, in words.
pub(super) fn check(source: &str, known: &[&str], bounds: Bounds) -> Result<(), String> {
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
    let mut checker = Checker {
        scopes: vec![scope],
        known,
        turns: 1,
        spent: 0,
        budget: bounds.budget,
    };
    checker.statement(&tree)
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
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                open = open.saturating_sub(1);
            }
            _ => {}
        }
        if open > BRACKETS {
            return Err(format!(
                "line {}: there are more than {BRACKETS} brackets in each other",
                span.start_line
            ));
        }
        if tokens > TOKENS {
            return Err(format!(
                "line {}: there are more than {TOKENS} words in one pair of braces",
                span.start_line
            ));
        }
        if tags > TAGS {
            return Err(format!(
                "line {}: there are more than {TAGS} pairs of {{% %}}",
                span.start_line
            ));
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
            Stmt::SetBlock(block) => Err(refused("a set block", block.span())),
            Stmt::AutoEscape(block) => Err(refused("autoescape", block.span())),
            Stmt::FilterBlock(block) => Err(refused("a filter block", block.span())),
            Stmt::Do(block) => Err(refused("do", block.span())),
        }
    }

    fn repeat(&mut self, repeat: &ForLoop<'a>) -> Result<(), String> {
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
            Expr::Tuple(tuple) => tuple
                .items
                .iter()
                .try_for_each(|item| self.bind(item, size)),
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
                    BinOpKind::Mul => return Err(refused("`*`", span)),
                    _ => SCALAR,
                }
            }
            Expr::List(list) => self.all(list.items.iter())?,
            Expr::Tuple(tuple) => self.all(tuple.items.iter())?,
            Expr::Map(map) => self.all(map.keys.iter().chain(&map.values))?,
            Expr::Call(_) => return Err(refused("a function or method", span)),
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
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => {
                    sum = sum.saturating_add(self.size(value)?);
                }
                CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                    return Err(refused("`*` before an argument", value.span()));
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

fn refused(what: &str, span: Span) -> String {
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
