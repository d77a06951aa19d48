//! Parameters of a call in AWS's query protocol: flat names such as `Tags.member.1.Key`.

use std::collections::BTreeMap;

/// The version of the `ELBv2` API.
pub(super) const ELB_VERSION: &str = "2015-12-01";

/// Parameters, including `Action` and `Version`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Form(BTreeMap<String, String>);

impl Form {
    pub(super) fn parse(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    /// Returns a call of the `ELBv2` API.
    pub(super) fn elb(action: &str, params: &[(&str, &str)]) -> Self {
        Self::of(ELB_VERSION, action, params)
    }

    /// Returns a call of the API with this version.
    pub(super) fn of(version: &str, action: &str, params: &[(&str, &str)]) -> Self {
        let head = [("Action", action), ("Version", version)];
        Self(
            head.iter()
                .chain(params)
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    pub(super) fn encode(&self) -> String {
        form_urlencoded::Serializer::new(String::new())
            .extend_pairs(&self.0)
            .finish()
    }

    pub(super) fn action(&self) -> &str {
        self.get("Action").unwrap_or_default()
    }

    pub(super) fn is_elb(&self) -> bool {
        self.get("Version") == Some(ELB_VERSION)
    }

    /// Returns the value of a parameter, if present and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns the items of a list of plain values.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        self.members(name)
            .into_iter()
            .filter_map(|mut member| member.remove(""))
            .collect()
    }

    /// Returns the items of a list in order, each with its own parameters; the name of a plain value is empty.
    pub(super) fn members(&self, name: &str) -> Vec<BTreeMap<String, String>> {
        let prefix = format!("{name}.member.");
        let mut members: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
        for (key, value) in &self.0 {
            let Some(rest) = key.strip_prefix(&prefix) else {
                continue;
            };
            let (number, field) = rest.split_once('.').unwrap_or((rest, ""));
            if let Ok(number) = number.parse() {
                members
                    .entry(number)
                    .or_default()
                    .insert(field.to_owned(), value.clone());
            }
        }
        members.into_values().collect()
    }

    /// Returns whether the list has any item.
    pub(super) fn has_list(&self, name: &str) -> bool {
        !self.members(name).is_empty()
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// Removes the parameter and all parts of a list or structure.
    pub(super) fn remove(&mut self, name: &str) {
        let prefix = format!("{name}.");
        self.0
            .retain(|key, _| key != name && !key.starts_with(&prefix));
    }

    pub(super) fn set_list(&mut self, name: &str, items: &[String]) {
        self.remove(name);
        for (at, item) in (1..).zip(items) {
            self.0.insert(format!("{name}.member.{at}"), item.clone());
        }
    }

    /// Renames the subnets in the parameters.
    pub(super) fn rename_subnets(&mut self, change: impl Fn(&str) -> Option<String>) {
        for (key, value) in &mut self.0 {
            if (key.starts_with("Subnets.") || key.ends_with(".SubnetId"))
                && let Some(changed) = change(value)
            {
                *value = changed;
            }
        }
    }

    /// Returns all parameters except `Action` and `Version`.
    pub(super) fn params(&self) -> BTreeMap<String, String> {
        let own = |name: &str| name != "Action" && name != "Version";
        self.0
            .iter()
            .filter(|(name, _)| own(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}
