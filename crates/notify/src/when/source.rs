//! Positions and hints in the text of an expression: its tree has no positions.

use cel::parser::pratt_parser::{Lexer, Token, TokenKind};

use super::types::NAMESPACE;

/// Text of an expression with its tokens, without those of white space and comments.
pub(super) struct Source<'a> {
    text: &'a str,
    tokens: Vec<Token>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut lexer = Lexer::new(text);
        let tokens = std::iter::from_fn(|| {
            let token = lexer.lex();
            (!matches!(token.kind, TokenKind::TokEnd | TokenKind::TokError)).then_some(token)
        });
        let is_blank = |kind| matches!(kind, TokenKind::TokWhitespace | TokenKind::TokComment);
        let tokens = tokens.filter(|token| !is_blank(token.kind)).collect();
        Self { text, tokens }
    }

    /// Returns the position of the token with this text and this index among the tokens of that text, as the beginning
    /// of a message.
    pub(super) fn of_token(&self, text: &str, index: usize) -> String {
        let mut tokens = self.tokens.iter().filter(|token| self.of(token) == text);
        self.position(tokens.nth(index))
    }

    fn of(&self, token: &Token) -> &'a str {
        self.text.get(token.start..token.end).unwrap_or_default()
    }

    fn position(&self, token: Option<&Token>) -> String {
        let before = token.and_then(|token| self.text.get(..token.start));
        before.map_or_else(String::new, |before| {
            let line = before.rsplit('\n').next().unwrap_or_default();
            let (lines, columns) = (before.matches('\n').count(), line.chars().count());
            format!("line {}, column {}: ", lines + 1, columns + 1)
        })
    }

    /// Returns what to write instead of the part at this line and byte of it, which the parser does not accept.
    pub(super) fn hint(&self, problem: &str, line: isize, column: isize) -> Option<String> {
        if problem.ends_with(": namespace") {
            return Some(format!("write {NAMESPACE}"));
        }
        if problem.contains("has() macro") {
            return Some(self.instead_of_has());
        }
        let index = |number: isize| usize::try_from(number).ok()?.checked_sub(1);
        let line = self.text.lines().nth(index(line)?)?;
        let (before, rest) = line.split_at_checked(index(column)?)?;
        let is_letter = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let word = rest.split(|char| !is_letter(char)).next()?;
        let last = before.trim_end().rsplit(|char| !is_letter(char)).next()?;
        let is_not = |word: &str| word.eq_ignore_ascii_case("not");
        let hint = match rest.chars().next()? {
            '=' => "write ==",
            '&' => "write &&",
            '|' => "write ||",
            '“' | '”' | '„' | '‘' | '’' | '‚' | '«' | '»' => "write straight quotes",
            _ if word.eq_ignore_ascii_case("and") => "write &&",
            _ if word.eq_ignore_ascii_case("or") => "write ||",
            _ if is_not(word) => "write ! before the comparison, such as !(value in ['1', '2'])",
            _ if is_not(last) => "write !",
            _ => return None,
        };
        Some(hint.into())
    }

    fn instead_of_has(&self) -> String {
        let argument = self.tokens.windows(4).find_map(|tokens| match tokens {
            [has, open, argument, close]
                if self.of(has) == "has"
                    && open.kind == TokenKind::TokLeftParen
                    && argument.kind == TokenKind::TokIdent
                    && close.kind == TokenKind::TokRightParen =>
            {
                Some(self.of(argument))
            }
            _ => None,
        });
        argument.map_or_else(
            || "write a member, such as has(context.owner)".into(),
            |argument| format!("write {argument} != null"),
        )
    }
}
