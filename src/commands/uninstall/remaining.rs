//! The objects and CRDs that still exist, what blocks their deletion, and the remedies.

use std::collections::HashSet;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use kube::Client;
use tokio::time::timeout;

use super::target::UninstallTarget;
use crate::cli::commands::UninstallArgs;
use crate::commands::FailedRequest;
use crate::commands::operator_state::OperatorState;
use crate::commands::printer::{Printer, count};
use crate::commands::terminating::namespace_remedies;
use crate::controllers::my_ingress;

/// Time limit of the last requests.
const LAST_REQUESTS_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of objects that are named while the command waits for them.
const MAX_NAMED: usize = 50;

#[derive(Default)]
pub(super) struct Remaining {
    pub(super) targets: Vec<UninstallTarget>,
    /// Names of the CRDs, each with the reason why it was not deleted.
    pub(super) crds: Vec<(String, Option<FailedRequest>)>,
}

impl Remaining {
    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.crds.is_empty()
    }

    pub(super) fn versions(&self) -> Vec<String> {
        let targets = self.targets.iter();
        targets.map(|target| target.version.clone()).collect()
    }

    /// Returns whether a missing permission stopped the last step of everything that remains.
    pub(super) fn is_forbidden(&self) -> bool {
        let targets = self.targets.iter().map(|target| &target.problem);
        let problems = targets.chain(self.crds.iter().map(|(_, problem)| problem));
        let codes: Vec<_> = problems.map(|it| it.as_ref()?.code).collect();
        !codes.is_empty() && codes.iter().all(|code| *code == Some(403))
    }

    /// Returns whether only the operator can proceed.
    pub(super) fn waits_for_operator(&self, args: &UninstallArgs) -> bool {
        let mut targets = self.targets.iter();
        !self.targets.is_empty() && targets.all(|target| target.waits_for_operator(args))
    }

    /// Prints what blocks each object, unless the same line was `printed` before.
    pub(super) fn print_blockers(
        &self,
        args: &UninstallArgs,
        printed: &mut HashSet<String>,
        out: &mut Printer,
    ) -> io::Result<()> {
        for target in self.targets.iter().take(MAX_NAMED) {
            for blocker in target.blockers(args) {
                let line = format!("waiting for {}: {blocker}", target.object.title());
                if printed.insert(line.clone()) {
                    out.line(line)?;
                }
            }
        }
        Ok(())
    }

    /// Prints what is left, what blocks it, and the remedies.
    pub(super) async fn print(
        &self,
        client: &Client,
        args: &UninstallArgs,
        out: &mut Printer,
    ) -> anyhow::Result<ExitCode> {
        out.line("")?;
        for target in &self.targets {
            out.line(format!("Remaining: {}", target.object.title()))?;
            for blocker in target.blockers(args) {
                out.line(format!("  {blocker}"))?;
            }
        }
        for (name, problem) in &self.crds {
            out.line(format!("Remaining: CRD {name}"))?;
            if let Some(problem) = problem {
                out.line(format!("  {problem}"))?;
            }
        }
        let objects = self.targets.iter().map(|target| &target.object);
        let namespaces = namespace_remedies(client, objects, &args.lease, &args.scope.cluster);
        let namespaces = timeout(LAST_REQUESTS_TIMEOUT, namespaces)
            .await
            .unwrap_or_default();
        let lease = args.lease.key();
        let operator = timeout(LAST_REQUESTS_TIMEOUT, OperatorState::read(client, &lease)).await;
        let operator = operator.unwrap_or_else(|_| OperatorState::Unknown {
            message: "the apiserver did not answer".into(),
        });
        let objects = self.remedies(&operator, args);
        for remedy in namespaces.into_values().chain(objects) {
            out.paragraph([remedy])?;
        }
        let left = self.targets.len() + self.crds.len();
        let left = count(left, "object remains", "objects remain");
        out.paragraph([format!(
            "{left}. Fix the problems above, then run the command again."
        )])?;
        Ok(ExitCode::FAILURE)
    }

    /// Returns the remedies for objects that wait for the operator. Pure.
    fn remedies(&self, operator: &OperatorState, args: &UninstallArgs) -> Vec<String> {
        let (scope, lease) = (&args.scope, &args.lease);
        let targets = self.targets.iter();
        let waiting: Vec<_> = targets
            .filter(|target| target.waits_for_operator(args))
            .collect();
        let mut remedies = Vec::new();
        if waiting.is_empty() {
            return remedies;
        }
        let namespace = scope.namespace();
        let namespace = namespace.map_or_else(String::new, |it| format!(" -n {it}"));
        let uninstall = |flags: String| {
            let command = format!("quartermaster uninstall {flags}");
            scope.cluster.command(&command)
        };
        if !operator.is_running()
            && let Some(problem) = operator.problem()
        {
            let is_known = operator.is_gone() || lease.explicit_namespace().is_some();
            let (lease_namespace, note) = if is_known {
                (lease.key().namespace.to_string(), "")
            } else {
                ("NAMESPACE".into(), " (NAMESPACE is where the operator ran)")
            };
            let keep = if args.keep_children {
                " --keep-children"
            } else {
                ""
            };
            let name = lease.name_flag();
            let command = uninstall(format!(
                "--without-operator{keep}{namespace} --operator-namespace={lease_namespace}{name}"
            ));
            remedies.push(format!(
                "{problem}. Start the operator and run the command again. If the operator is gone for good, remove its finalizers: \
                 {command}{note}"
            ));
        }
        if waiting.iter().any(|target| target.is_of(&my_ingress::KIND)) {
            let command = uninstall(format!("--keep-children{namespace}{}", lease.flags()));
            remedies.push(format!(
                "To keep the load balancers in AWS and all other children, run: {command}"
            ));
        }
        remedies
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::target::tests::{args, target};
    use super::*;

    fn printed(target: UninstallTarget, operator: &OperatorState, flags: &[&str]) -> String {
        let remaining = Remaining {
            targets: vec![target],
            crds: Vec::new(),
        };
        remaining.remedies(operator, &args(flags)).join("\n")
    }

    #[test]
    fn remedies_follow_the_operator_and_the_flags() {
        let runs = OperatorState::Running {
            holder: "a".into(),
            overdue: Some(jiff::Timestamp::UNIX_EPOCH),
        };
        let gone = OperatorState::Gone {
            message: "why".into(),
        };
        let unknown = OperatorState::Unknown {
            message: "why".into(),
        };
        let ingress = || target("myingress", "gd");
        let runs = printed(ingress(), &runs, &[]);
        assert!(!runs.contains("--without-operator") && runs.contains("--keep-children"));
        let seen = "--without-operator -n shop --operator-namespace=quartermaster-system\n";
        assert!(printed(ingress(), &gone, &["-n", "shop"]).contains(seen));
        let sync = printed(target("configmapsync", "gd"), &gone, &[]);
        assert!(!sync.contains("--keep-children"), "{sync}");
        assert_eq!(printed(target("myapp", "d"), &gone, &[]), "");
        let app = printed(target("myapp", "s"), &gone, &["--keep-children"]);
        assert!(
            app.contains("--without-operator --keep-children --op"),
            "{app}"
        );

        // The command repeats flags that select Lease and cluster, and asks for the missing namespace.
        assert!(
            printed(ingress(), &unknown, &[])
                .contains("--without-operator --operator-namespace=NAMESPACE (NAMESPACE is")
        );
        let given = [
            "-n",
            "shop",
            "--operator-namespace=ops",
            "--leader-election-id=id",
            "--context=a b",
        ];
        let text = printed(ingress(), &unknown, &given);
        let rest = "-n shop --operator-namespace=ops --leader-election-id=id --context='a b'";
        let alone = format!("quartermaster uninstall --without-operator {rest}\n");
        let kept = format!("quartermaster uninstall --keep-children {rest}");
        assert!(text.contains(&alone) && text.ends_with(&kept), "{text}");
    }
}
