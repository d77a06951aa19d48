//! kubectl's dialect of `JSONPath` (<https://kubernetes.io/docs/reference/kubectl/jsonpath/>), translated to RFC 9535.
//!
//! What differs from the RFC, and so is rewritten here: the braces; `\.` in names; a quoted key is itself a dotted path
//! (`['a.b']` is `.a.b`, `['a\.b']` is the key `a.b`); a filter stands in parentheses and compares two things at most,
//! and one whose side is missing does not match; a union may be of paths. Stricter than kubectl: exactly one expression,
//! and bounds that keep a query's work proportional to its object. More lenient: an index or slice that is out of range
//! matches what there is, the leading dot may be left out, and keys may stand in double quotes.

/// A union multiplies the queries that run; more than this many are refused.
const MOST_QUERIES: usize = 16;

mod filter;

type Result<T> = std::result::Result<T, String>;

/// The queries, in RFC 9535's syntax, whose matches together are those of `template`; or what to write instead of it.
pub(super) fn translate(template: &str) -> Result<Vec<String>> {
    let Some(expression) = template.strip_prefix('{') else {
        return Err("text around the braces is not supported: write one JSONPath, such as {.spec.replicas}".into());
    };
    let mut parser = Parser { rest: expression, descended: false, in_filter: false };
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
        return Err("it holds several expressions: write exactly one, in one pair of braces".into());
    }
    if !parser.rest.is_empty() {
        return Err("text around the braces is not supported: write one JSONPath, such as {.spec.replicas}".into());
    }
    if steps.queries.iter().any(String::is_empty) {
        return Err("it names no field: write which, such as {.spec.replicas}".into());
    }
    Ok(steps.queries.into_iter().map(|query| format!("${query}")).collect())
}

/// What follows `$` or `@`, once for each way through its unions.
struct Steps {
    queries: Vec<String>,
    /// It matches one value at most.
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

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
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
            return "it ends too early: a closing brace, bracket, parenthesis or quote is missing".into();
        }
        let rest: String = self.rest.chars().take(40).collect();
        format!(
            "{rest:?} is not understood: write a path of names, such as {{.spec.template.spec.containers[0].image}}"
        )
    }

    fn refuse_range(&self) -> Result<()> {
        let word: String = self.rest.chars().take_while(|c| c.is_alphanumeric()).collect();
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

    /// Steps up to something that is none; `bare` when the first name may come without its dot.
    fn steps(&mut self, bare: bool) -> Result<Steps> {
        let mut steps = Steps { queries: vec![String::new()], singular: true };
        self.skip_spaces();
        if bare && self.peek().is_some_and(|c| !".[]{},$@'\"()".contains(c)) {
            self.name(&mut steps, "")?;
        }
        loop {
            self.skip_spaces();
            if let Some(rest) = self.rest.strip_prefix("..") {
                if self.in_filter || self.descended {
                    return Err("`..` may stand in it once, and not in a filter: write the names in between".into());
                }
                self.rest = rest;
                self.descended = true;
                steps.singular = false;
                if self.eat('[') { self.bracket(&mut steps, "..")? } else { self.name(&mut steps, "..")? }
            } else if self.eat('.') {
                self.name(&mut steps, "")?;
            } else if self.eat('[') {
                self.bracket(&mut steps, "")?;
            } else {
                return Ok(steps);
            }
        }
    }

    /// One name, or `*`, after a dot.
    fn name(&mut self, steps: &mut Steps, prefix: &str) -> Result<()> {
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
        if plain && name == "*" {
            steps.singular = false;
            steps.push(&[format!("{prefix}[*]")])
        } else {
            steps.push(&[format!("{prefix}[{}]", quote(&name))])
        }
    }

    /// What stands in brackets; the opening one is taken.
    fn bracket(&mut self, steps: &mut Steps, prefix: &str) -> Result<()> {
        self.skip_spaces();
        let mut ways = Vec::new();
        if self.eat('?') {
            ways.push(format!("{prefix}[?{}]", self.filter()?));
            steps.singular = false;
        } else {
            loop {
                self.skip_spaces();
                let way = match self.peek() {
                    Some('\'' | '"') => self.key(steps)?,
                    _ => self.index(steps)?,
                };
                ways.push(format!("{prefix}{way}"));
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
        steps.push(&ways)
    }

    /// A quoted key, which is a dotted path of its own.
    fn key(&mut self, steps: &mut Steps) -> Result<String> {
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
            return Err(format!("the key '{raw}' has an empty name: a dot that belongs to a name is written \\."));
        }
        let mut way = String::new();
        for (name, plain) in parts {
            if plain && name == "*" {
                steps.singular = false;
                way.push_str("[*]");
            } else {
                way.extend(["[", &quote(&name), "]"]);
            }
        }
        Ok(way)
    }

    /// An index, a slice or `*`.
    fn index(&mut self, steps: &mut Steps) -> Result<String> {
        let end = self.rest.find([',', ']']).ok_or_else(|| "a closing bracket is missing".to_owned())?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = text.trim();
        if text == "*" {
            steps.singular = false;
            return Ok("[*]".into());
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
            [Some(index)] => Ok(format!("[{index}]")),
            [_, _] | [_, _, _] => {
                if numbers.get(2).copied().flatten().is_some_and(|step| step <= 0) {
                    return Err(format!("[{text}]: the step of a slice is 1 or more"));
                }
                steps.singular = false;
                Ok(format!("[{}]", numbers.iter().map(show).collect::<Vec<_>>().join(":")))
            }
            _ => Err(wrong()),
        }
    }
}

impl Steps {
    /// Goes on by each of `ways`, in kubectl's order: the first way from everywhere, then the second.
    fn push(&mut self, ways: &[String]) -> Result<()> {
        if let ([query], [way]) = (&mut self.queries[..], ways) {
            query.push_str(way);
            return Ok(());
        }
        if self.queries.len() * ways.len() > MOST_QUERIES {
            return Err(format!("its lists in brackets combine to more than {MOST_QUERIES} paths: write fewer"));
        }
        self.queries = ways.iter().flat_map(|way| self.queries.iter().map(move |q| format!("{q}{way}"))).collect();
        Ok(())
    }
}

/// A string literal of RFC 9535.
fn quote(text: &str) -> String {
    let mut quoted = String::from("'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted.extend(["\\u00", &format!("{:02x}", u32::from(c))]),
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}
