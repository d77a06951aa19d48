//! Decides which adoptions `adopt` allows, and prints the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::candidate::Candidate;
use super::classify::Adoptability;
use crate::cli::commands::AdoptArgs;
use crate::commands::printer::{Cell, Printer, count};

/// Rejects objects that several owners need: the user has to name the one that adopts the object.
pub(super) fn reject_contested(candidates: &mut [Candidate]) {
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for candidate in candidates.iter().filter(|it| is_adoptable(it)) {
        let owners = owners.entry(candidate.title.clone()).or_default();
        owners.push(candidate.owner_title());
    }
    for candidate in candidates.iter_mut().filter(|it| is_adoptable(it)) {
        let owners = owners.get(&candidate.title);
        if let Some(owners) = owners.filter(|owners| owners.len() > 1) {
            candidate.adoptability = Adoptability::NotAdoptable(format!(
                "{} need it: name the one that adopts it",
                owners.join(" and ")
            ));
        }
    }
}

fn is_adoptable(candidate: &Candidate) -> bool {
    !matches!(
        candidate.adoptability,
        Adoptability::AlreadyOwned | Adoptability::NotAdoptable(_)
    )
}

/// Returns the objects whose adoption to allow, and those that may change and whose owners the user has not named.
pub(super) fn partition<'a>(
    candidates: &'a [Candidate],
    args: &AdoptArgs,
) -> (Vec<&'a Candidate>, Vec<&'a Candidate>) {
    let stays = |it: &Candidate| matches!(it.adoptability, Adoptability::Adoptable(_));
    let candidates = candidates.iter().filter(|it| is_adoptable(it));
    candidates.partition(|it| stays(it) || !args.owners.is_empty())
}

/// Returns the line with the command that allows the adoptions of the plan.
pub(super) fn adoptable(number: usize, args: &AdoptArgs) -> String {
    let owners = args.owners.iter().map(ToString::to_string);
    format!(
        "{} be adopted: {}",
        count(number, "object can", "objects can"),
        command(args, args.scope.namespace(), owners)
    )
}

/// Returns a line for each namespace, with the command that names the owners of the objects that adoption changes.
pub(super) fn to_be_named(unnamed: &[&Candidate], args: &AdoptArgs) -> Vec<String> {
    let mut namespaces: BTreeMap<&str, (usize, BTreeSet<String>)> = BTreeMap::new();
    for candidate in unnamed {
        let namespace = candidate.owner.namespace();
        let (number, owners) = namespaces.entry(namespace).or_default();
        *number += 1;
        owners.insert(candidate.owner_arg());
    }
    let line = |(namespace, (number, owners)): (&str, (usize, BTreeSet<String>))| {
        format!(
            "{}: {}",
            count(
                number,
                "object may change on adoption, so name its owner",
                "objects may change on adoption, so name their owners"
            ),
            command(args, Some(namespace), owners.into_iter())
        )
    };
    namespaces.into_iter().map(line).collect()
}

fn command(
    args: &AdoptArgs,
    namespace: Option<&str>,
    owners: impl Iterator<Item = String>,
) -> String {
    let command = "quartermaster adopt --yes".to_owned();
    let namespace = namespace.map(|namespace| format!("-n {namespace}"));
    let parts: Vec<_> = [command]
        .into_iter()
        .chain(owners)
        .chain(namespace)
        .collect();
    args.scope.cluster.command(&parts.join(" "))
}

pub(super) fn print(
    candidates: &[Candidate],
    cluster_name: &str,
    args: &AdoptArgs,
    out: &mut Printer,
) -> io::Result<()> {
    if !candidates.is_empty() {
        out.line(format!("Cluster: {cluster_name}"))?;
        out.line("")?;
    }
    let (mut rows, mut left) = (Vec::new(), Vec::new());
    for candidate in candidates {
        let (owner, title) = (candidate.owner_title(), &candidate.title);
        let note = match &candidate.adoptability {
            Adoptability::AlreadyOwned => continue,
            Adoptability::NotAdoptable(problem) => {
                left.push(format!("{title}, which {owner} needs: {problem}"));
                continue;
            }
            Adoptability::WouldReplace(why) | Adoptability::Unknown(why)
                if args.owners.is_empty() =>
            {
                format!("{why}; adopted only if you name the owner")
            }
            Adoptability::Adoptable(note)
            | Adoptability::WouldReplace(note)
            | Adoptability::Unknown(note) => note.clone(),
        };
        rows.push([owner, title.clone(), note].map(Cell::from).into());
    }
    if rows.is_empty() {
        out.line("There is nothing to adopt.")?;
    } else {
        out.table(&["OWNER", "OBJECT", "NOTE"], &rows)?;
    }
    out.section("Unchanged:", &left)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::{Args as _, FromArgMatches as _};
    use qm_api::ConfigMapSync;
    use qm_runtime::ownership::Owner;
    use serde_json::{from_value, json};

    use super::super::CandidateObject;
    use super::*;

    fn candidate(name: &str, title: &str, adoptability: Adoptability) -> Candidate {
        let sync =
            json!({ "metadata": { "namespace": "sync", "name": name, "uid": name }, "spec": {} });
        let owner = Owner::of(&from_value::<ConfigMapSync>(sync).unwrap()).unwrap();
        let read = Ok(Some((CandidateObject::Unreadable, adoptability)));
        Candidate::new(&owner, title.into(), read).unwrap()
    }

    fn args(flags: &[&str]) -> AdoptArgs {
        let flags = ["adopt"].iter().chain(flags);
        let matches = AdoptArgs::augment_args(clap::Command::new("adopt")).get_matches_from(flags);
        AdoptArgs::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn object_that_several_resources_need_is_rejected() {
        let adoptable = || Adoptability::Adoptable("same as its source".into());
        let mut all = [
            candidate("a", "configmap far/x", adoptable()),
            candidate(
                "b",
                "configmap far/x",
                Adoptability::WouldReplace("differs".into()),
            ),
            candidate("c", "configmap far/y", adoptable()),
            candidate(
                "d",
                "configmap far/y",
                Adoptability::NotAdoptable("it is managed by Helm".into()),
            ),
        ];
        reject_contested(&mut all);
        let text = "configmapsync/a in sync and configmapsync/b in sync need it: name the one that adopts it";
        for it in &all[..2] {
            assert_eq!(it.adoptability, Adoptability::NotAdoptable(text.into()));
        }
        assert_eq!(all[2].adoptability, adoptable());
    }

    #[test]
    fn resource_of_an_object_that_may_change_has_to_be_named() {
        let all = [
            candidate(
                "a",
                "configmap far/x",
                Adoptability::Adoptable("same as its source".into()),
            ),
            candidate(
                "b",
                "configmap far/y",
                Adoptability::WouldReplace("differs".into()),
            ),
            candidate(
                "b",
                "configmap near/y",
                Adoptability::Unknown("its source could not be read".into()),
            ),
        ];
        let plain = args(&["--context=prod"]);
        let (adopted, unnamed) = partition(&all, &plain);
        assert_eq!((adopted.len(), unnamed.len()), (1, 2));
        let text = "2 objects may change on adoption, so name their owners: \
             quartermaster adopt --yes configmapsync/b -n sync --context=prod";
        assert_eq!(to_be_named(&unnamed, &plain), [text]);
        let (adopted, unnamed) = partition(&all, &args(&["-n=sync", "cmsync/a", "cmsync/b"]));
        assert_eq!((adopted.len(), unnamed.len()), (3, 0));
    }
}
