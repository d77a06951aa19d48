//! XML of AWS's query protocol: elements with text or with children, without significant attributes.

use std::fmt::Write as _;

/// An element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) children: Vec<Self>,
}

impl Element {
    /// Returns an element with text.
    pub(super) fn text(name: &str, text: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            text: text.into(),
            children: Vec::new(),
        }
    }

    /// Returns an element with children.
    pub(super) fn with(name: &str, children: Vec<Self>) -> Self {
        Self {
            name: name.to_owned(),
            text: String::new(),
            children,
        }
    }

    /// Returns a list whose items are `member` elements.
    pub(super) fn list(name: &str, items: impl IntoIterator<Item = Vec<Self>>) -> Self {
        Self::with(
            name,
            items
                .into_iter()
                .map(|item| Self::with("member", item))
                .collect(),
        )
    }

    /// Returns a list of plain values.
    pub(super) fn texts(name: &str, items: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::with(
            name,
            items
                .into_iter()
                .map(|item| Self::text("member", item))
                .collect(),
        )
    }

    pub(super) fn parse(xml: &str) -> anyhow::Result<Self> {
        Ok(Self::of(roxmltree::Document::parse(xml)?.root_element()))
    }

    fn of(node: roxmltree::Node<'_, '_>) -> Self {
        Self {
            name: node.tag_name().name().to_owned(),
            text: node.text().unwrap_or_default().to_owned(),
            children: node
                .children()
                .filter(roxmltree::Node::is_element)
                .map(Self::of)
                .collect(),
        }
    }

    pub(super) fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    pub(super) fn child_mut(&mut self, name: &str) -> Option<&mut Self> {
        self.children.iter_mut().find(|child| child.name == name)
    }

    /// Returns the text of a child; empty if there is none.
    pub(super) fn get(&self, name: &str) -> &str {
        self.child(name)
            .map(|child| child.text.as_str())
            .unwrap_or_default()
    }

    /// Returns the children of a child.
    pub(super) fn members(&self, name: &str) -> &[Self] {
        self.child(name)
            .map(|child| child.children.as_slice())
            .unwrap_or_default()
    }

    /// Replaces the child with the same name, or appends it.
    pub(super) fn put(&mut self, child: Self) {
        match self.child_mut(&child.name) {
            Some(former) => *former = child,
            None => self.children.push(child),
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.children.retain(|child| child.name != name);
    }

    pub(super) fn render(&self, out: &mut String) {
        self.render_with(out, "");
    }

    /// Renders the element; `attributes` start with a space.
    pub(super) fn render_with(&self, out: &mut String, attributes: &str) {
        let Self {
            name,
            text,
            children,
        } = self;
        let _ = write!(out, "<{name}{attributes}>"); // writing to a String cannot fail
        for character in text.chars() {
            match character {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                other => out.push(other),
            }
        }
        for child in children {
            child.render(out);
        }
        let _ = write!(out, "</{name}>");
    }
}
