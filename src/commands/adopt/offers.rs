//! What of all that was found may be handed over, and what is said of it.

use std::collections::{BTreeMap, BTreeSet};
use std::{io, iter};

use super::Found;
use super::find::Verdict;
use crate::cli::commands::AdoptArgs;
use crate::commands::printer::{Cell, Printer, count};

fn is_offered(found: &Found) -> bool {
    matches!(
        found.verdict,
        Verdict::Offer(_) | Verdict::Replace(_) | Verdict::Unsure(_)
    )
}

/// What several resources want is left alone: somebody has to say which of them has it. Pure.
pub fn contest(found: &mut [Found]) {
    let mut wanted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for it in found.iter().filter(|it| is_offered(it)) {
        wanted
            .entry(it.what.clone())
            .or_default()
            .push(it.of.clone());
    }
    for it in found.iter_mut().filter(|it| is_offered(it)) {
        if let Some(all) = wanted.get(&it.what).filter(|all| all.len() > 1) {
            it.verdict = Verdict::Leave(format!(
                "{} want it: name the one that is to have it",
                all.join(" and ")
            ));
        }
    }
}

/// What is handed over, and what only if its resource is named. Pure.
pub fn sort<'a>(found: &'a [Found], args: &AdoptArgs) -> (Vec<&'a Found>, Vec<&'a Found>) {
    let now = |it: &&Found| !args.resources.is_empty() || matches!(it.verdict, Verdict::Offer(_));
    found.iter().filter(|it| is_offered(it)).partition(now)
}

/// The command that hands over what is named.
pub fn command(
    args: &AdoptArgs,
    namespace: Option<&str>,
    names: impl Iterator<Item = String>,
) -> String {
    let place = namespace.map(|namespace| format!("-n {namespace}"));
    let words: Vec<_> = iter::once("quartermaster adopt --yes".to_owned())
        .chain(names)
        .chain(place)
        .collect();
    args.scope.cluster.command(&words.join(" "))
}

/// How that is handed over which is not without being named, namespace by namespace. Pure.
pub fn to_be_named(later: &[&Found], args: &AdoptArgs) -> Vec<String> {
    let mut places: BTreeMap<&str, (usize, BTreeSet<String>)> = BTreeMap::new();
    for it in later {
        let (number, names) = places.entry(it.owner.namespace()).or_default();
        *number += 1;
        names.insert(it.resource.to_string());
    }
    let line = |(namespace, (number, names)): (&str, (usize, BTreeSet<String>))| {
        let what = count(
            number,
            "thing may not stay as it is, and has",
            "things may not stay as they are, and have",
        );
        format!(
            "{what} to be named: {}",
            command(args, Some(namespace), names.into_iter())
        )
    };
    places.into_iter().map(line).collect()
}

/// Shows all of it.
pub fn show(found: &[Found], called: &str, args: &AdoptArgs, out: &mut Printer) -> io::Result<()> {
    if !found.is_empty() {
        out.line(format!("Cluster: {called}"))?;
        out.line("")?;
    }
    let row = |it: &Found| {
        let note = match &it.verdict {
            Verdict::Offer(note) => note.clone(),
            Verdict::Replace(why) | Verdict::Unsure(why) if args.resources.is_empty() => {
                format!("{why}; only if it is named")
            }
            Verdict::Replace(why) | Verdict::Unsure(why) => why.clone(),
            Verdict::Settled | Verdict::Leave(_) => return None,
        };
        Some(vec![
            Cell::from(&it.of),
            Cell::from(&it.what),
            Cell::from(note),
        ])
    };
    let rows: Vec<_> = found.iter().filter_map(row).collect();
    if rows.is_empty() {
        out.line("There is nothing to hand over.")?;
    } else {
        out.table(&["TO", "WHAT", "NOTE"], &rows)?;
    }
    let left = found.iter().filter_map(|it| match &it.verdict {
        Verdict::Leave(why) => Some(format!("  {}, which {} is to have: {why}", it.what, it.of)),
        _ => None,
    });
    for (number, line) in left.enumerate() {
        if number == 0 {
            out.line("")?;
            out.line("Left alone:")?;
        }
        out.line(line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::{Args as _, FromArgMatches as _};
    use qm_api::ConfigMapSync;
    use qm_runtime::ownership::Owner;
    use serde_json::{from_value, json};

    use super::super::Thing;
    use super::*;

    fn found(name: &str, what: &str, verdict: Verdict) -> Found {
        let sync =
            json!({ "metadata": { "namespace": "sync", "name": name, "uid": name }, "spec": {} });
        let owner = Owner::of(&from_value::<ConfigMapSync>(sync).unwrap()).unwrap();
        Found::of::<ConfigMapSync>(&owner, what.into(), Thing::Unknown, verdict)
    }

    fn args(words: &[&str]) -> AdoptArgs {
        let words = ["adopt"].iter().chain(words);
        let matches = AdoptArgs::augment_args(clap::Command::new("adopt")).get_matches_from(words);
        AdoptArgs::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn what_several_want_goes_to_none() {
        let offer = || Verdict::Offer("as its source".into());
        let mut all = [
            found("a", "configmap far/x", offer()),
            found("b", "configmap far/x", Verdict::Replace("differs".into())),
            found("c", "configmap far/y", offer()),
            found(
                "d",
                "configmap far/y",
                Verdict::Leave("it is managed by Helm".into()),
            ),
        ];
        contest(&mut all);
        let words = "configmapsync/a in sync and configmapsync/b in sync want it: name the one that is to have it";
        for it in &all[..2] {
            assert_eq!(it.verdict, Verdict::Leave(words.into()));
        }
        assert_eq!(all[2].verdict, offer());
    }

    #[test]
    fn what_does_not_stay_as_it_is_has_to_be_named() {
        let all = [
            found(
                "a",
                "configmap far/x",
                Verdict::Offer("as its source".into()),
            ),
            found("b", "configmap far/y", Verdict::Replace("differs".into())),
            found(
                "b",
                "configmap near/y",
                Verdict::Unsure("its source could not be read".into()),
            ),
        ];
        let plain = args(&["--context=prod"]);
        let (now, later) = sort(&all, &plain);
        assert_eq!((now.len(), later.len()), (1, 2));
        let words = "2 things may not stay as they are, and have to be named: \
             quartermaster adopt --yes configmapsync/b -n sync --context=prod";
        assert_eq!(to_be_named(&later, &plain), [words]);
        let (now, later) = sort(&all, &args(&["-n=sync", "cmsync/a", "cmsync/b"]));
        assert_eq!((now.len(), later.len()), (3, 0));
    }
}
