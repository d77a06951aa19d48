//! The subcommands that users run against a cluster, with their own kubeconfig.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fmt};

use clap::{Args, Subcommand, ValueEnum};
use kube::CustomResourceExt;
use kube::core::ApiResource;
use qm_api::{ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField, TrackedFieldSet};
use qm_notify::when::When;

use super::lease::LeaseArgs;
use super::parse;

const STATUS_AFTER_HELP: &str = "\
States:
  Ready        the object is ready
  NotReady     REASON, and the message below the table, say why
  Delivering   messages are Pending
  Suspended    spec.suspend is true
  Terminating  the object is being deleted
  NotObserved  the operator has not reported on the current spec

Examples:
  # Show all namespaces
  quartermaster status

  # Show one namespace, and refresh it
  quartermaster status -n shop --watch

  # Print the resources that are not ready, for a script
  quartermaster status -o json | jq '.objects[] | select(.state == \"NotReady\")'

Exit codes:
  0  shown, whatever the states are
  1  the cluster did not answer, or a kind could not be listed
  2  usage error";

const HISTORY_AFTER_HELP: &str = "\
Examples:
  # Show the recorded changes, oldest first, and how far each message got
  quartermaster history tf/nginx-replicas -n shop

  # Print the stored entries for a script
  quartermaster history nginx-replicas -o json

  # Show the newest 200 changes of all resources of a set
  quartermaster history tfs/prod-images -n ops

Exit codes:
  0  shown
  1  there is no such object, its history cannot be read, or the cluster did not answer
  2  usage error";

const MATCHES_AFTER_HELP: &str = "\
States:
  Tracked   the set has a TrackedField for the resource
  New       the set creates a TrackedField
  Covered   another TrackedField sends the same messages
  LeftOut   the resource is beyond maxTargets
  Conflict  a TrackedField that the set does not own has the name
  Leaving   the set no longer needs the TrackedField

Examples:
  # Show what a set selects
  quartermaster matches tfs/prod-images -n ops

  # Show what the set in a file would select, before you apply it
  quartermaster matches -f set.yaml

Exit codes:
  0  shown
  1  a state is LeftOut or Conflict, the spec has an error, or the cluster did not answer
  2  usage error";

const TEST_AFTER_HELP: &str = "\
Examples:
  # Send a test message, and print whether the receiver accepted it
  quartermaster test cp/telegram-cp -n shop

  # Wait longer, such as for a receiver that limits the rate
  quartermaster test contactpoint/slack --timeout=2m

Exit codes:
  0  the receiver accepted the message
  1  the receiver did not accept it, or the operator sent none in time
  2  usage error";

const ADOPT_AFTER_HELP: &str = "\
Examples:
  # Show what can be adopted; change nothing
  quartermaster adopt

  # Let the resources of one namespace adopt the objects that stay as they are
  quartermaster adopt -n shop --yes

  # Let these two resources adopt their objects, even those that change
  quartermaster adopt -n shop --yes cmsync/settings myapp/web

Exit codes:
  0  shown, or allowed
  1  an object could not be read, or its adoption could not be allowed
  2  usage error";

const UNINSTALL_AFTER_HELP: &str = "\
Examples:
  # Show what would be deleted
  quartermaster uninstall --dry-run

  # Show what would be deleted, and ask
  quartermaster uninstall

  # Delete without asking, for scripts; the CRDs too
  quartermaster uninstall --yes --purge --timeout=2m

  # Delete the resources only: apps keep running, copies and load balancers stay
  quartermaster uninstall --keep-children

  # Remove the finalizers of Terminating resources whose operator no longer runs
  quartermaster uninstall --without-operator --operator-namespace=quartermaster-system

Exit codes:
  0  everything is deleted, or shown
  1  something remains; the command lists it with what blocks it
  2  usage error, or you did not confirm: nothing is deleted";

/// The commands that users run against a cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show every object, and what is wrong with it
    #[command(after_help = STATUS_AFTER_HELP)]
    Status(StatusArgs),
    /// Show the recorded changes of a TrackedField or TrackedFieldSet
    #[command(after_help = HISTORY_AFTER_HELP)]
    History(HistoryArgs),
    /// Show the resources that a TrackedFieldSet selects
    ///
    /// The command lists the resources with your permissions, and changes nothing.
    #[command(after_help = MATCHES_AFTER_HELP)]
    Matches(MatchesArgs),
    /// Send a test message to the receiver of a ContactPoint
    ///
    /// The command sets the annotation quartermaster.dev/test-at, and the operator sends one test message. The command then
    /// waits for the receiver's answer, which the operator writes into status.lastTest.
    #[command(after_help = TEST_AFTER_HELP)]
    Test(TestArgs),
    /// Adopt objects that another program created
    ///
    /// The command finds ConfigMaps that have the name of a copy of a ConfigMapSync, the Pod NAME-pod of a MyApp, and the load
    /// balancer NAME-alb of a MyIngress. It lists those that have no other owner.
    ///
    /// With --yes the command allows their adoption, by the annotation or tag quartermaster.dev/adopt-by=NAMESPACE/NAME, and
    /// the operator adopts them. An object that adoption would overwrite or replace stays unchanged, unless you name its
    /// owner.
    ///
    /// The AWS SDK finds region and credentials, such as from AWS_REGION and AWS_PROFILE. Only a MyIngress that is not ready
    /// needs them.
    #[command(after_help = ADOPT_AFTER_HELP)]
    Adopt(AdoptArgs),
    /// Delete all objects of Quartermaster's kinds
    ///
    /// Run this command while the operator runs, because only the operator deletes load balancers and copies of ConfigMaps.
    /// Then delete the operator. The CRDs stay unless you add --purge.
    ///
    /// The command names what blocks a deletion. With --without-operator it removes the operator's finalizers: what the
    /// operator would have deleted stays, and is listed.
    #[command(after_help = UNINSTALL_AFTER_HELP)]
    Uninstall(UninstallArgs),
}

/// The cluster, by kubectl's flags.
#[derive(Debug, Default, Args)]
pub(crate) struct ClusterArgs {
    /// Use this kubeconfig instead of $KUBECONFIG and ~/.kube/config
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Use this context of the kubeconfig instead of its current one
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
    /// The program, as the user runs it.
    #[arg(skip)]
    pub(crate) program: Invocation,
}

/// The command that runs this program: `quartermaster`, or `kubectl quartermaster` for a plugin of kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invocation(pub(crate) &'static str);

impl Invocation {
    const ALONE: &str = "quartermaster ";

    /// Returns the program of an executable with this path.
    pub(crate) fn from_path(path: Option<&OsStr>) -> Self {
        let name = path.map(Path::new).and_then(Path::file_stem);
        let is_plugin = name
            .is_some_and(|name| name == "kubectl-quartermaster" || name == "kubectl_quartermaster");
        Self(if is_plugin {
            "kubectl quartermaster"
        } else {
            "quartermaster"
        })
    }

    pub(crate) fn as_str(self) -> &'static str {
        self.0
    }

    /// Returns a help text with the commands of its examples as the user types them.
    pub(crate) fn help(self, text: &str) -> String {
        text.replace(&format!("  {}", Self::ALONE), &format!("  {} ", self.0))
    }

    /// Returns a command as the user types it.
    fn command(self, text: &str) -> String {
        text.strip_prefix(Self::ALONE)
            .map_or_else(|| text.to_owned(), |rest| format!("{} {rest}", self.0))
    }
}

impl Default for Invocation {
    fn default() -> Self {
        Self::from_path(env::args_os().next().as_deref())
    }
}

impl ClusterArgs {
    /// Returns a command of this program or of kubectl for a shell, with the flags that select this cluster.
    pub fn command(&self, text: &str) -> String {
        let text = self.program.command(text);
        let file = self.kubeconfig.as_ref().map(|file| {
            format!(
                " --kubeconfig={}",
                shell_words::quote(&file.to_string_lossy())
            )
        });
        let context = self
            .context
            .as_ref()
            .map(|name| format!(" --context={}", shell_words::quote(name)));
        [Some(text), file, context].into_iter().flatten().collect()
    }
}

/// The whole cluster, or one namespace of it.
#[derive(Debug, Default, Args)]
pub(crate) struct ScopeArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Limit the command to this namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = parse::one_namespace)]
    pub(crate) namespace: Option<String>,
    /// Include all namespaces (default)
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

impl ScopeArgs {
    /// Returns the namespace; `None` means all.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people
    Table,
    /// JSON for scripts
    Json,
}

/// The flags of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// Print a table or JSON
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
    /// Refresh until Ctrl-C; without a terminal, print only changes
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Refresh at this interval; requests take at most a tenth of the time
    #[arg(long, value_name = "DURATION", value_parser = parse::duration, default_value = "2s", hide = true)]
    pub(crate) interval: Duration,
}

/// The flags of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Show this TrackedField or TrackedFieldSet, such as tf/web, web or tfs/prod-images
    #[arg(value_name = "KIND/NAME", value_parser = parse_recorded)]
    pub(crate) resource: RecordedObject,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Look in this namespace (default: the namespace of the context)
    #[arg(short, long, value_name = "NAMESPACE", value_parser = parse::one_namespace)]
    pub(crate) namespace: Option<String>,
    /// Show for which entries this expression of spec.when would send a message
    #[arg(long, value_name = "EXPRESSION", value_parser = parse_when)]
    pub(crate) when: Option<Arc<When>>,
    /// Print a table or JSON
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

/// An object with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedObject {
    /// A `TrackedField` of this name.
    Field(String),
    /// The children of the `TrackedFieldSet` of this name.
    Set(String),
}

fn parse_when(expression: &str) -> Result<Arc<When>, String> {
    When::parse(expression).map(Arc::new)
}

/// The flags of `matches`.
#[derive(Debug, Args)]
pub struct MatchesArgs {
    /// Show this TrackedFieldSet, such as tfs/prod-images or prod-images
    #[arg(value_name = "tfs/NAME", value_parser = tracked_field_set, required_unless_present = "file")]
    pub(crate) name: Option<String>,
    /// Show the TrackedFieldSet in this file instead; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "name")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Look in this namespace (default: the file's namespace, or that of the context)
    #[arg(short, long, value_name = "NAMESPACE", value_parser = parse::one_namespace)]
    pub(crate) namespace: Option<String>,
    /// Print a table or JSON
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

/// The flags of `test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Test this ContactPoint, such as cp/slack or slack
    #[arg(value_name = "cp/NAME", value_parser = contact_point)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// Look in this namespace (default: the namespace of the context)
    #[arg(short, long, value_name = "NAMESPACE", value_parser = parse::one_namespace)]
    pub(crate) namespace: Option<String>,
    /// Wait at most this long for the receiver's answer
    #[arg(long, value_name = "DURATION", value_parser = parse::duration, default_value = "1m")]
    pub(crate) timeout: Duration,
}

/// The flags of `adopt`.
#[derive(Debug, Args)]
pub struct AdoptArgs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    /// Adopt only for these owners of one namespace, such as cmsync/settings, myapp/web or mying/web
    #[arg(value_name = "KIND/NAME", value_parser = parse_adopter, requires = "namespace", conflicts_with = "all_namespaces")]
    pub(crate) owners: Vec<OwnerArg>,
    /// Allow the listed adoptions; one that may change its object also needs KIND/NAME
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// The flags of `uninstall`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // each is a switch of its own on the command line
pub struct UninstallArgs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// Keep Deployments, Services, Pods, copies and load balancers
    #[arg(long)]
    pub(crate) keep_children: bool,
    /// Delete the CRDs too, after the last object
    #[arg(long, conflicts_with = "namespace")]
    pub(crate) purge: bool,
    /// Remove the operator's finalizers, because the operator is gone for good
    ///
    /// Copies of ConfigMaps in other namespaces and load balancers in AWS stay, and are listed. The command needs proof that
    /// the operator is gone: its Lease expires while the command watches it, or --operator-namespace names a namespace without
    /// its Lease. While an operator's Lease is being renewed anywhere, a missing Lease counts only with --leader-election-id,
    /// and -n is required. An operator without --leader-elect has no Lease: stop it first.
    #[arg(long)]
    pub(crate) without_operator: bool,
    /// Delete without asking
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Show what would be deleted, and delete nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Stop after this time, even if objects remain
    #[arg(long, value_name = "DURATION", value_parser = parse::duration, default_value = "5m")]
    pub(crate) timeout: Duration,
    /// Stop earlier if only the operator can continue, nothing has changed for this time, and no Lease proves that it runs
    #[arg(long, value_name = "DURATION", value_parser = parse::duration, default_value = "30s")]
    pub(crate) stalled_after: Duration,
}

/// An owner that the user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerArg {
    /// Kind as the API spells it.
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl fmt::Display for OwnerArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.to_lowercase(), self.name)
    }
}

/// Returns kind `K` if `word` is one of its names in kubectl.
fn parse_kind<K: CustomResourceExt>(word: &str) -> Option<String> {
    let ApiResource {
        kind,
        plural,
        group,
        ..
    } = K::api_resource();
    let long = [kind.to_lowercase(), plural]
        .into_iter()
        .flat_map(|word| [format!("{word}.{group}"), word]);
    (long.into_iter().any(|known| known == word) || K::shortnames().contains(&word)).then_some(kind)
}

/// Parses `cmsync/NAME`, `myapp/NAME` or `mying/NAME`.
fn parse_adopter(text: &str) -> Result<OwnerArg, String> {
    let named = text.split_once('/').and_then(|(word, name)| {
        let kind = parse_kind::<ConfigMapSync>(word)
            .or_else(|| parse_kind::<MyApp>(word))
            .or_else(|| parse_kind::<MyIngress>(word));
        Some(OwnerArg {
            kind: kind?,
            name: parse::object(name)?,
        })
    });
    named.ok_or_else(|| {
        "write the name of a ConfigMapSync, MyApp or MyIngress, such as cmsync/settings or myapp/web".into()
    })
}

/// Parses `tf/NAME`, `tfs/NAME` or `NAME`, which is a `TrackedField`.
fn parse_recorded(text: &str) -> Result<RecordedObject, String> {
    let (kind, name) = text.rsplit_once('/').unwrap_or(("tf", text));
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    let recorded = name.and_then(|name| {
        if parse_kind::<TrackedField>(kind).is_some() {
            Some(RecordedObject::Field(name))
        } else {
            parse_kind::<TrackedFieldSet>(kind).map(|_| RecordedObject::Set(name))
        }
    });
    recorded.ok_or_else(|| {
        "write the name of a TrackedField or TrackedFieldSet, such as tf/nginx-replicas or tfs/prod-images: only these have a history".into()
    })
}

/// Parses `tfs/NAME`, `trackedfieldset/NAME` or `NAME`, and returns the name.
fn tracked_field_set(text: &str) -> Result<String, String> {
    let (kind, name) = text.rsplit_once('/').unwrap_or(("tfs", text));
    let name = parse_kind::<TrackedFieldSet>(kind).and_then(|_| parse::object(name));
    name.ok_or_else(|| {
        "write the name of a TrackedFieldSet, such as tfs/prod-images: only these select resources"
            .into()
    })
}

/// Parses `cp/NAME`, `contactpoint/NAME` or `NAME`, and returns the name.
fn contact_point(text: &str) -> Result<String, String> {
    let (kind, name) = text.rsplit_once('/').unwrap_or(("cp", text));
    let name = parse_kind::<ContactPoint>(kind).and_then(|_| parse::object(name));
    name.ok_or_else(|| {
        "write the name of a ContactPoint, such as cp/telegram-cp: only these have a receiver"
            .into()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::Parser as _;
    use rstest::rstest;

    use super::*;
    use crate::cli::Cli;

    #[rstest]
    #[case("web", Some(RecordedObject::Field("web".into())))]
    #[case("tf/web", Some(RecordedObject::Field("web".into())))]
    #[case("trackedfields.tg.azamaton.ru/web", Some(RecordedObject::Field("web".into())))]
    #[case("tfs/web", Some(RecordedObject::Set("web".into())))]
    #[case("trackedfieldset/web", Some(RecordedObject::Set("web".into())))]
    #[case("cp/web", None)]
    #[case("tf/", None)]
    fn history_takes_the_name_of_a_kind_with_one(
        #[case] text: &str,
        #[case] recorded: Option<RecordedObject>,
    ) {
        assert_eq!(parse_recorded(text).ok(), recorded);
    }

    #[rstest]
    #[case("web", Some("web"))]
    #[case("tfs/web", Some("web"))]
    #[case("tf/web", None)]
    #[case("tfs/", None)]
    fn matches_takes_the_name_of_a_set(#[case] text: &str, #[case] name: Option<&str>) {
        assert_eq!(tracked_field_set(text).ok().as_deref(), name);
    }

    #[rstest]
    #[case("hook", Some("hook"))]
    #[case("cp/hook", Some("hook"))]
    #[case("contactpoint/hook", Some("hook"))]
    #[case("contactpoints.tg.azamaton.ru/hook", Some("hook"))]
    #[case("tf/hook", None)]
    #[case("cp/", None)]
    #[case("cp/$(x)", None)]
    fn test_takes_the_name_of_a_contact_point(#[case] text: &str, #[case] name: Option<&str>) {
        assert_eq!(contact_point(text).ok().as_deref(), name);
    }

    #[rstest]
    #[case("cmsync/settings", Some("configmapsync/settings"))]
    #[case("configmapsyncs/a.b", Some("configmapsync/a.b"))]
    #[case("ma/web", Some("myapp/web"))]
    #[case("myapps.demo.rtfm.co.ua/web", Some("myapp/web"))]
    #[case("mying/web", Some("myingress/web"))]
    #[case("cp/web", None)]
    #[case("settings", None)]
    #[case("myapp/", None)]
    #[case("myapp/$(x)", None)]
    fn adopt_takes_the_name_of_a_kind_that_adopts(#[case] text: &str, #[case] named: Option<&str>) {
        assert_eq!(
            parse_adopter(text).ok().map(|it| it.to_string()).as_deref(),
            named
        );
    }

    #[test]
    fn printed_command_selects_the_same_cluster() {
        let command = |kubeconfig: Option<&str>, context: Option<&str>| {
            let context = context.map(Into::into);
            ClusterArgs {
                kubeconfig: kubeconfig.map(Into::into),
                context,
                ..ClusterArgs::default()
            }
            .command("kubectl get pods")
        };
        assert_eq!(command(None, None), "kubectl get pods");
        assert_eq!(
            command(None, Some("arn:aws:eks:c/1")),
            "kubectl get pods --context=arn:aws:eks:c/1"
        );
        let both = "kubectl get pods --kubeconfig='/my home/it'\\''s' --context='a$(b)'";
        assert_eq!(command(Some("/my home/it's"), Some("a$(b)")), both);
    }

    #[rstest]
    #[case("/usr/bin/quartermaster", "quartermaster")]
    #[case("/usr/local/bin/kubectl-quartermaster", "kubectl quartermaster")]
    #[case("kubectl-quartermaster.exe", "kubectl quartermaster")]
    fn program_is_named_as_its_user_runs_it(#[case] path: &str, #[case] name: &str) {
        let program = Invocation::from_path(Some(path.as_ref()));
        assert_eq!(program.as_str(), name);
        assert_eq!(
            program.command("quartermaster status"),
            format!("{name} status")
        );
        assert_eq!(program.command("kubectl get pods"), "kubectl get pods");
        assert_eq!(
            program.help("Examples:\n  quartermaster status\n      All."),
            format!("Examples:\n  {name} status\n      All.")
        );
    }

    #[rstest]
    #[case(&["status", "-A"], true)]
    #[case(&["status", "-A", "-n", "shop"], false)]
    #[case(&["status", "-o", "yaml"], false)]
    #[case(&["uninstall", "--purge", "--keep-children", "--yes"], true)]
    #[case(&["uninstall", "--purge", "-n", "shop"], false)]
    #[case(&["uninstall", "--timeout", "0s"], false)]
    #[case(&["history"], false)]
    #[case(&["matches"], false)]
    #[case(&["matches", "-f", "-"], true)]
    #[case(&["matches", "tfs/web", "-f", "-"], false)]
    // Several namespaces may have a resource of this name.
    #[case(&["adopt", "myapp/web"], false)]
    #[case(&["adopt", "-A", "myapp/web"], false)]
    #[case(&["adopt", "-n", "", "myapp/web"], false)]
    #[case(&["adopt", "-n", "shop", "myapp/web"], true)]
    #[case(&["uninstall", "-n", "", "--yes"], false)]
    fn arguments_are_checked(#[case] arguments: &[&str], #[case] good: bool) {
        for program in ["quartermaster", "/usr/local/bin/kubectl-quartermaster"] {
            let parsed = Cli::try_parse_from([&[program], arguments].concat());
            assert_eq!(parsed.is_ok(), good, "{parsed:?}");
        }
    }
}
