//! kubectl's dialect of `JSONPath` (<https://kubernetes.io/docs/reference/kubectl/jsonpath/>), translated to RFC 9535.
//!
//! Differences from the RFC, rewritten here: the braces; `\.` in names; a quoted key is itself a dotted path (`['a.b']`
//! is `.a.b`, `['a\.b']` is the key `a.b`); a filter needs parentheses, compares two values at most, and does not match
//! if one is missing; a union may be of paths. Stricter than kubectl: exactly one expression, and bounds that keep a
//! query's work proportional to its object. More lenient: an index or slice that is out of range matches what there is,
//! the leading dot may be left out, and keys may be in double quotes.

/// Maximum number of queries: a union multiplies them.
const MOST_QUERIES: usize = 16;

mod filter;

use super::query::{QuerySelector, QueryStep};

type Result<T> = std::result::Result<T, String>;

/// Returns the RFC 9535 queries whose matches together are the matches of `template`. The error says what to write
/// instead.
pub(super) fn translate(template: &str) -> Result<Vec<Vec<QueryStep>>> {
    let Some(expression) = template.strip_prefix('{') else {
        return Err(
            "text around the braces is not supported: write one JSONPath, such as {.spec.replicas}"
                .into(),
        );
    };
    let mut parser = Parser {
        rest: expression,
        descended: false,
        in_filter: false,
    };
    parser.skip_spaces();
    parser.refuse_range()?;
    if !parser.eat('$') {
        parser.eat('@');
    }
    let steps = parser.steps(true)?;
    if !parser.eat('}') {
        return Err(parser.unexpected());
    }
    if parser.rest.contains('{') {
        return Err(
            "the JSONPath has several expressions: write exactly one, in one pair of braces".into(),
        );
    }
    if !parser.rest.is_empty() {
        return Err(
            "text around the braces is not supported: write one JSONPath, such as {.spec.replicas}"
                .into(),
        );
    }
    if steps.queries.iter().any(Vec::is_empty) {
        return Err("the JSONPath names no field: write one, such as {.spec.replicas}".into());
    }
    Ok(steps.queries)
}

/// Steps after `$` or `@`, once for each way through the unions.
struct Steps {
    queries: Vec<Vec<QueryStep>>,
    /// The steps match one value at most.
    singular: bool,
}

struct Parser<'a> {
    rest: &'a str,
    descended: bool,
    in_filter: bool,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    fn eat(&mut self, expected: char) -> bool {
        let found = self.peek() == Some(expected);
        if found {
            self.next();
        }
        found
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn unexpected(&self) -> String {
        if self.rest.is_empty() {
            return "the JSONPath ends too early: a closing brace, bracket, parenthesis or quote is missing"
                .into();
        }
        let rest: String = self.rest.chars().take(40).collect();
        format!(
            "{rest:?} is not understood: write a path of names, such as {{.spec.template.spec.containers[0].image}}"
        )
    }

    fn refuse_range(&self) -> Result<()> {
        let word: String = self
            .rest
            .chars()
            .take_while(|c| c.is_alphanumeric())
            .collect();
        let after = self.rest[word.len()..].chars().next();
        match (word.as_str(), after) {
            ("range", Some(' ' | '\t')) | ("end", Some('}' | ' ')) => {
                Err("{range} and {end} are not supported: write one path that matches all of them, such as \
                 {.spec.template.spec.containers[*].image}; several matches give a JSON list"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Parses steps until something else follows; `bare`: the first name may lack its dot.
    fn steps(&mut self, bare: bool) -> Result<Steps> {
        let mut steps = Steps {
            queries: vec![Vec::new()],
            singular: true,
        };
        self.skip_spaces();
        if bare && self.peek().is_some_and(|c| !".[]{},$@'\"()".contains(c)) {
            self.name(&mut steps, false)?;
        }
        loop {
            self.skip_spaces();
            if let Some(rest) = self.rest.strip_prefix("..") {
                if self.in_filter || self.descended {
                    return Err(
                        "`..` may appear only once, and not in a filter: write the field names instead"
                            .into(),
                    );
                }
                self.rest = rest;
                self.descended = true;
                steps.singular = false;
                if self.eat('[') {
                    self.bracket(&mut steps, true)?;
                } else {
                    self.name(&mut steps, true)?;
                }
            } else if self.eat('.') {
                self.name(&mut steps, false)?;
            } else if self.eat('[') {
                self.bracket(&mut steps, false)?;
            } else {
                return Ok(steps);
            }
        }
    }

    /// Parses one name, or `*`, after a dot.
    fn name(&mut self, steps: &mut Steps, descends: bool) -> Result<()> {
        let mut name = String::new();
        let mut plain = true;
        while let Some(next) = self.peek() {
            if " \t\r\n.,[]$@{}".contains(next) || (self.in_filter && "!<>=()".contains(next)) {
                break;
            }
            self.next();
            if next == '\\' {
                plain = false;
                name.push(self.next().ok_or_else(|| self.unexpected())?);
            } else {
                name.push(next);
            }
        }
        if name.is_empty() {
            return Err("a name is missing after a dot: write it, or leave the dot out".into());
        }
        let select = if plain && name == "*" {
            steps.singular = false;
            QuerySelector::All
        } else {
            QuerySelector::Name(name.into())
        };
        steps.push(&[vec![QueryStep { descends, select }]])
    }

    /// Parses the content of brackets, after the opening one.
    fn bracket(&mut self, steps: &mut Steps, descends: bool) -> Result<()> {
        self.skip_spaces();
        let mut ways = Vec::new();
        if self.eat('?') {
            ways.push(vec![QueryStep::child(QuerySelector::Filter(
                self.filter()?.into(),
            ))]);
            steps.singular = false;
        } else {
            loop {
                self.skip_spaces();
                ways.push(match self.peek() {
                    Some('\'' | '"') => self.key(steps)?,
                    _ => vec![QueryStep::child(self.index(steps)?)],
                });
                self.skip_spaces();
                if !self.eat(',') {
                    break;
                }
            }
            steps.singular &= ways.len() == 1;
        }
        if !self.eat(']') {
            return Err(self.unexpected());
        }
        for first in ways.iter_mut().filter_map(|way| way.first_mut()) {
            first.descends = descends;
        }
        steps.push(&ways)
    }

    /// Parses a quoted key, which is a dotted path.
    fn key(&mut self, steps: &mut Steps) -> Result<Vec<QueryStep>> {
        let end = self.next();
        let mut raw = String::new();
        loop {
            match self.next() {
                None => return Err(self.unexpected()),
                next if next == end => break,
                Some('\\') => {
                    raw.push('\\');
                    raw.extend(self.next());
                }
                Some(other) => raw.push(other),
            }
        }
        let mut parts = vec![(String::new(), true)];
        let mut chars = raw.chars();
        while let Some(next) = chars.next() {
            let (name, plain) = parts.last_mut().ok_or_else(String::new)?;
            match next {
                '.' => parts.push((String::new(), true)),
                '\\' => {
                    *plain = false;
                    name.extend(chars.next());
                }
                other => name.push(other),
            }
        }
        if parts.iter().any(|(name, _)| name.is_empty()) {
            return Err(format!(
                "the key '{raw}' has an empty name: a dot that belongs to a name is written \\."
            ));
        }
        let way = parts.into_iter().map(|(name, plain)| {
            if plain && name == "*" {
                steps.singular = false;
                QueryStep::child(QuerySelector::All)
            } else {
                QueryStep::child(QuerySelector::Name(name.into()))
            }
        });
        Ok(way.collect())
    }

    /// Parses an index, a slice or `*`.
    fn index(&mut self, steps: &mut Steps) -> Result<QuerySelector> {
        let end = self
            .rest
            .find([',', ']'])
            .ok_or_else(|| "a closing bracket is missing".to_owned())?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = text.trim();
        if text == "*" {
            steps.singular = false;
            return Ok(QuerySelector::All);
        }
        let wrong = || {
            format!(
                "[{text}] is not understood: brackets hold an index, a slice 1:3, *, a key in quotes or a filter ?(@.name==\"x\")"
            )
        };
        let parts: Vec<&str> = text.split(':').collect();
        let mut numbers = Vec::new();
        for part in &parts {
            numbers.push(match part.trim() {
                "" => None,
                number => Some(number.parse::<i64>().map_err(|_| wrong())?),
            });
        }
        let show = |number: &Option<i64>| number.map_or_else(String::new, |n| n.to_string());
        match &numbers[..] {
            [Some(index)] => Ok(QuerySelector::Index(*index)),
            [_, _] | [_, _, _] => {
                if numbers
                    .get(2)
                    .copied()
                    .flatten()
                    .is_some_and(|step| step <= 0)
                {
                    return Err(format!("[{text}]: the step of a slice is 1 or more"));
                }
                steps.singular = false;
                Ok(QuerySelector::Slice(
                    numbers
                        .iter()
                        .map(show)
                        .collect::<Vec<_>>()
                        .join(":")
                        .into(),
                ))
            }
            _ => Err(wrong()),
        }
    }
}

impl Steps {
    /// Appends each of `ways` to each query, in kubectl's order: the first way everywhere, then the second.
    fn push(&mut self, ways: &[Vec<QueryStep>]) -> Result<()> {
        if let ([query], [way]) = (&mut self.queries[..], ways) {
            query.extend_from_slice(way);
            return Ok(());
        }
        if self.queries.len() * ways.len() > MOST_QUERIES {
            return Err(format!(
                "the lists in brackets combine to more than {MOST_QUERIES} paths: list fewer names"
            ));
        }
        self.queries = ways
            .iter()
            .flat_map(|way| self.queries.iter().map(move |q| [&q[..], way].concat()))
            .collect();
        Ok(())
    }
}
