//! What is asked of objects before they are deleted.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::target::{Step, Target};
use crate::cli::commands::Cluster;
use crate::commands::lease::Operator;

/// How long an operator of which nothing is known is given to take note of a change.
const TAKES_NOTE: Duration = Duration::from_secs(3);

/// What was asked of which object, by UID.
#[derive(Debug, Default)]
pub struct Asked {
    suspended: HashMap<String, Instant>,
    /// What was changed, or may have been, of an object that is not deleted: its title, and the command that undoes it.
    changed: BTreeMap<String, (String, String)>,
}

impl Asked {
    /// This is about to be done about an object.
    pub fn does(&mut self, target: &Target, step: Step) {
        let field = match step {
            // Whoever acts on it takes note of that anew.
            Step::Suspend => {
                self.suspended.remove(&target.uid);
                "suspend"
            }
            Step::KeepCopies => "deletionPolicy",
            _ => return,
        };
        if !target.deleting {
            let resource = target.kind.crd_name();
            let (name, namespace) = (&target.object.name, &target.object.namespace);
            let undo = format!(
                "kubectl patch {resource} {name} -n {namespace} --type=merge -p '{{\"spec\":{{\"{field}\":null}}}}'"
            );
            self.changed
                .insert(target.uid.clone(), (target.title(), undo));
        }
    }

    /// The apiserver has not done it.
    pub fn refused(&mut self, target: &Target, step: Step) {
        if matches!(step, Step::Suspend | Step::KeepCopies) {
            self.changed.remove(&target.uid);
        }
    }

    /// It is gone, or being deleted.
    pub fn goes(&mut self, uid: &str) {
        self.changed.remove(uid);
    }

    /// What was changed in this cluster and is not deleted, each with the command that undoes it.
    pub fn undo(&self, cluster: &Cluster) -> Vec<String> {
        self.changed
            .values()
            .map(|(title, command)| format!("{title}: {}", cluster.command(command)))
            .collect()
    }

    /// Whether the operator may still be about to take note that this object is suspended, at `now`. One that may well run is
    /// waited for, however long it takes: a pass under way would have what the object made go with it. Where nobody knows, the
    /// object is given its time from when it was first seen suspended.
    pub fn patient(&mut self, uid: &str, operator: &Operator, now: Instant) -> bool {
        let since = *self.suspended.entry(uid.to_owned()).or_insert(now);
        operator.may_run() || now.duration_since(since) < TAKES_NOTE
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::json;

    use super::*;
    use crate::commands::objects;

    fn target(uid: &str, deleting: bool) -> Target {
        let object = json!({ "metadata": { "namespace": "shop", "name": "web", "uid": uid,
            "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z") } });
        Target::of(
            objects::kind("myapp").unwrap(),
            &serde_json::from_value(object).unwrap(),
        )
    }

    #[test]
    fn what_was_changed_is_known_until_it_goes() {
        let mut asked = Asked::default();
        let cluster = Cluster {
            context: Some("prod".into()),
            ..Cluster::default()
        };
        let undo = |field| {
            format!(
                "myapp/web in shop: kubectl patch myapps.demo.rtfm.co.ua web -n shop --type=merge -p \
                 '{{\"spec\":{{\"{field}\":null}}}}' --context=prod"
            )
        };
        asked.does(&target("a", false), Step::Suspend);
        asked.does(&target("b", false), Step::KeepCopies);
        asked.does(&target("c", false), Step::Wait);
        asked.does(&target("d", true), Step::KeepCopies);
        assert_eq!(
            asked.undo(&cluster),
            [undo("suspend"), undo("deletionPolicy")]
        );
        // What came after it was refused, it itself was not.
        asked.refused(&target("a", false), Step::LetGo);
        asked.refused(&target("b", false), Step::KeepCopies);
        assert_eq!(asked.undo(&cluster), [undo("suspend")]);
        asked.goes("a");
        assert_eq!(asked.undo(&cluster), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_object_has_its_own_time_and_who_runs_has_any() {
        let (unknown, runs) = (Operator::Unknown("why".into()), Operator::Runs("a".into()));
        let (stopped, not_yet) = (
            Operator::Stopped("why".into()),
            Operator::NotYet("a".into()),
        );
        let mut asked = Asked::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(asked.patient("one", &unknown, after(0)));
        assert!(asked.patient("one", &unknown, after(2)));
        assert!(!asked.patient("one", &unknown, after(3)));
        assert!(!asked.patient("one", &stopped, after(3)));
        // Long after the beginning.
        assert!(asked.patient("other", &unknown, after(60)));
        assert!(asked.patient("other", &unknown, after(62)));
        assert!(!asked.patient("other", &unknown, after(63)));
        for operator in [runs, not_yet] {
            assert!(asked.patient("one", &operator, after(600)));
        }
        // Somebody had it go on in between.
        asked.does(&target("one", false), Step::Suspend);
        assert!(asked.patient("one", &unknown, after(601)));
    }
}
